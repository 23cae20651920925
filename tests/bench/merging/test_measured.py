"""Reading a folder of measured profiles: all of a small one, and what is wrong with a broken one."""

import gzip
import math
from pathlib import Path

import pytest

from bench.merging.curves import CurveSetting, read_learning_curves
from bench.merging.measured import MOST_EPOCHS, read_profiles, read_workload
from schemas.merging.reports import MeasuredStep
from tests.support.profiles import FILES, SHARED, curve, learning, write_profiles


def test_curves_are_found_by_task_and_setting(tmp_path):
    profiles = read_profiles(write_profiles(tmp_path), "tiny", "X1")
    red = profiles.single("red", CurveSetting("1e-4", 2))
    assert (red.metric, red.epochs, red.values) == ("eval_accuracy", (1.0, 2.0, 3.0), (0.5, 0.7, 0.8))
    assert profiles.curves.tasks == ("red", "blue", "grey")
    grey = profiles.single("grey", CurveSetting("1e-3", 1))
    assert grey.values == (math.exp(-2.0), math.exp(-1.5)), "losses are negative, and read as probabilities"


def test_of_repeated_runs_the_first_is_kept(tmp_path):
    blue = read_profiles(write_profiles(tmp_path), "tiny", "X1").single("blue", CurveSetting("1e-3", 1))
    assert (blue.epochs, blue.values) == ((1.0, 2.0), (0.6, 0.8))


def test_empty_curves_are_left_out(tmp_path):
    profiles = read_profiles(write_profiles(tmp_path), "tiny", "X1")
    with pytest.raises(LookupError, match=r"'red' .* rate 1e-4 with 1 .* measured: 1e-4 with 2"):
        profiles.single("red", CurveSetting("1e-4", 1))
    assert set(profiles.curves.temporal) == {("red", "blue"), ("blue", "red")}


def test_merged_curves_are_the_receivers_in_either_order(tmp_path):
    curves = read_learning_curves(write_profiles(tmp_path), "tiny")
    assert curves.merged("red", "blue", "temporal").values == (0.75, 0.85)
    assert curves.merged("red", "blue", "spatial").metric == "eval_f1"
    assert curves.merged("blue", "red", "spatial").values == (0.55, 0.8)
    assert curves.merged("grey", "red", "temporal") is None
    assert curves.merged("grey", "red", "spatial") is None


def test_target_is_met_within_rounding(tmp_path):
    (red, _) = read_workload(write_profiles(tmp_path) / "workload.csv")
    single = read_profiles(tmp_path, "tiny", "X1").single(red.task, red.setting)
    assert single.first_reaching(red.target) == 3
    assert single.first_reaching(0.6) == 2
    assert single.first_reaching(0.81) is None


def test_placements_are_rows_of_the_lookup_table(tmp_path):
    steps = list(read_profiles(write_profiles(tmp_path), "tiny", "X1").steps)
    assert steps[2] == MeasuredStep(
        gpus=4, nodes=2, micro_batch_size=2, accumulation_steps=1, step_s=0.15, exchange_s=0.05
    )
    assert (steps[-1].gpus, steps[-1].nodes) == (8, 6), "the large allocations come last"


def test_large_allocations_may_be_missing(tmp_path):
    (write_profiles(tmp_path) / "tiny_X1_scalability.csv").unlink()
    assert len(list(read_profiles(tmp_path, "tiny", "X1").steps)) == 3


def test_memory_is_by_micro_batch_in_ascending_order(tmp_path):
    memory = read_profiles(write_profiles(tmp_path), "tiny", "X1").memory
    assert memory.gib_by_micro_batch == ((2, 1.0), (4, 2.0), (8, 6.0))


def test_own_samples_precede_published_ones(tmp_path):
    samples = read_profiles(write_profiles(tmp_path), "tiny", "X1").samples
    assert (samples["red"], samples["mnli"]) == (100, 98_176)
    (tmp_path / "samples.csv").unlink()
    assert "red" not in read_profiles(tmp_path, "tiny", "X1").samples


def test_jobs_of_a_workload(tmp_path):
    red, blue = read_workload(write_profiles(tmp_path) / "workload.csv")
    assert (red.name, red.submitted_s, red.task, red.gpus, red.batch_size) == ("tiny@red-0", 45, "red", 1, 8)
    assert (blue.setting, blue.target) == (CurveSetting("1e-3", 1), 0.7)


NEEDED = sorted(set(FILES) - {"tiny_X1_scalability.csv", "samples.csv", "workload.csv"})


@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_file_is_named(tmp_path, name):
    (write_profiles(tmp_path) / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        read_profiles(tmp_path, "tiny", "X1")


def test_an_unknown_model_names_those_that_are_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"learning_huge.json.gz is missing.*there: tiny"):
        read_learning_curves(write_profiles(tmp_path), "huge")
    with pytest.raises(FileNotFoundError, match=r"workload of nobody"):
        read_workload(tmp_path / "workload of nobody.csv")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tiny_X1_placements.csv", "placement,local_bsz,step_time\n1,2,0.1\n", "line 2: column `sync_time`"),
        ("tiny_X1_placements.csv", "placement,local_bsz,step_time,sync_time\n10,2,1,0\n", "digit per node"),
        (
            "tiny_X1_placements.csv",
            "placement,local_bsz,step_time,sync_time\n1,2,nan,0\n",
            "`step_time`.*'nan'",
        ),
        ("tiny_X1_placements.csv", "placement,local_bsz,step_time,sync_time\n1,2.5,1,0\n", "whole number"),
        ("tiny_X1_placements.csv", "placement,local_bsz,step_time,sync_time\n1,2,1,2\n", "cannot be longer"),
        ("tiny_X1_placements.csv", "placement,local_bsz,step_time,sync_time\n", "no rows"),
        (
            "tiny_X1_scalability.csv",
            "num_nodes,num_replicas,local_bsz,step_time,sync_time\n6,2,2,0.3,0.2\n",
            "2 GPUs are fewer than the 6 nodes",
        ),
        ("tiny_X1_memory.csv", "local_bsz,gpu_memory\n2,1\n", "at least two rows"),
        ("tiny_X1_memory.csv", "local_bsz,gpu_memory\n2,1\n2,3\n", "different sizes"),
        ("tiny_X1_memory.csv", "local_bsz,gpu_memory\n0,1\n2,3\n", "line 2: `local_bsz`"),
        ("tiny_X1_context_switch.csv", "app,time_cost\na,1\nb,2\n", "one row"),
        ("samples.csv", "task,samples\nred,many\n", "`samples`.*'many'"),
    ],
)
def test_malformed_table_names_line_and_column(tmp_path, name, text, message):
    (write_profiles(tmp_path) / name).write_text(text)
    with pytest.raises(ValueError, match=f"(?s){name}.*{message}"):
        read_profiles(tmp_path, "tiny", "X1")


def test_a_malformed_workload_is_refused(tmp_path):
    path = write_profiles(tmp_path) / "workload.csv"
    path.write_text(FILES["workload.csv"].replace("tiny@blue,", "blue,"))
    with pytest.raises(ValueError, match=r"line 3: `application` is `model@task`, not 'blue'"):
        read_workload(path)


def broken(**sections: object) -> dict[str, object]:
    return learning() | sections


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ({"single": {}, "temporal": {}}, "`spatial` is missing"),
        (broken(single=[]), "single is an object, not list"),
        (broken(temporal={"red": curve(0.5)}), "`A,B`, not 'red'"),
        (broken(temporal={"red,blue": {}}), "one metric"),
        (broken(temporal={"red,blue": curve(0.5) | curve(0.5, metric="eval_f1")}), "one metric"),
        (
            broken(temporal={"red,blue": {"eval_accuracy": [0.5], "eval_accuracy_epoch": []}}),
            "1 values .* 0 epochs",
        ),
        (broken(temporal={"red,blue": {"eval_accuracy": [0.5]}}), "`eval_accuracy_epoch` is a list"),
        (broken(temporal={"red,blue": curve(float("nan"))}), "finite numbers"),
        (
            broken(temporal={"red,blue": {"eval_accuracy": ["0.5"], "eval_accuracy_epoch": [1]}}),
            "finite numbers",
        ),
        (broken(spatial={"red,blue": curve(0.5, task="red")}), "`blue_eval_...`"),
        (broken(single={"red": {"1e-4": {"two": curve(0.5)}}}), "whole number from 1 on, not 'two'"),
    ],
)
def test_malformed_curves_are_refused_with_their_place(tmp_path, curves, message):
    write_profiles(tmp_path, curves)
    with pytest.raises(ValueError, match=f"learning_tiny.json.gz.*{message}"):
        read_learning_curves(tmp_path, "tiny")


@pytest.mark.parametrize(
    "content",
    [b"not gzipped", gzip.compress(b"{", mtime=0), gzip.compress(b"{}", mtime=0)[:-9]],
    ids=["not gzipped", "not JSON", "cut short"],
)
def test_file_without_gzipped_json_is_refused(tmp_path, content):
    (write_profiles(tmp_path) / "learning_tiny.json.gz").write_bytes(content)
    with pytest.raises(ValueError, match="not gzipped JSON"):
        read_learning_curves(tmp_path, "tiny")


@pytest.mark.skipif(not SHARED.exists(), reason="the measured profiles are not here")
@pytest.mark.parametrize("model", ["roberta-base", "vit"])
def test_the_real_folder_is_read_whole(model):
    for gpu in ("V100", "A100"):
        profiles = read_profiles(SHARED, model, gpu)
        assert len(list(profiles.steps)) > 1_500
    curves = profiles.curves
    every = [
        *(curve for settings in curves.single.values() for curve in settings.values()),
        *curves.temporal.values(),
        *(curve for both in curves.spatial.values() for curve in both),
    ]
    assert {len(found.values) for found in every} == {MOST_EPOCHS}
    for path in sorted((SHARED / "workloads").glob(f"*-{Path(model).name}.csv")):
        jobs = read_workload(path)
        for job in jobs:
            # A workload's targets are the best values of the jobs' own curves.
            assert profiles.single(job.task, job.setting).first_reaching(job.target) is not None
            assert profiles.samples[job.task]
