"""All that ranks of tests import and compile, for the server from which they are forked: what it has done, no
rank does again."""

import transformers.models.bert.modeling_bert
import transformers.models.gpt2.modeling_gpt2
import transformers.models.llama.modeling_llama
import transformers.models.mixtral.modeling_mixtral
import transformers.models.switch_transformers.modeling_switch_transformers  # noqa: F401

import tests.support.parallel_scenarios
import tests.support.served_ranks
import tests.support.trained_ranks  # noqa: F401
from executors.moe.serving.service import ServiceTerms, warm_up
from solvers.experts.schemes import SCHEMES

for _scheme in SCHEMES.values():
    warm_up(ServiceTerms(_scheme, most_experts_per_device=4, path_length=3, profile_batches=1), 2, 4)
