"""All that ranks of tests import and compile, for the server from which they are forked: what it has done, no
rank does again."""

from importlib import import_module

from executors.moe.serving.service import ServiceTerms, warm_up
from solvers.experts.schemes import SCHEMES

for _module in (
    "torch._dynamo",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.mixtral.modeling_mixtral",
    "transformers.models.switch_transformers.modeling_switch_transformers",
    "executors.elastic.rank",
    "executors.moe.serving.rank",
    "executors.moe.training.rank",
    "executors.tuner.rank",
    "tests.support.parallel_scenarios",
    "tests.support.pipeline_scenarios",
    "tests.support.served_ranks",
    "tests.support.trained_ranks",
):
    import_module(_module)
for _scheme in SCHEMES.values():
    warm_up(ServiceTerms(_scheme, most_experts_per_device=4, path_length=3, profile_batches=1), 2, 4)
