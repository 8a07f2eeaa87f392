"""MLflow with its own package: the same names and values, and one run however often it is resumed."""

import shutil

import pytest

from neobert.config import from_dict, to_dict
from neobert.trackers.identity import run_identity
from neobert.trackers.mlflow import DATABASE, MLFLOW
from neobert.trackers.tracker import TrackedRun

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages that it stands on
SETTINGS = to_dict(from_dict({"optimizer": {"lr": 0.25}}))


@pytest.fixture(autouse=True)
def _no_server(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)


def start(run_dir, first_step=0):
    run_dir.mkdir(exist_ok=True)
    identity = run_identity(run_dir, first_step)
    run = TrackedRun(run_dir=run_dir, identity=identity, first_step=first_step, settings=SETTINGS)
    return MLFLOW.start(run)


def test_a_resumed_run_is_the_same_run_with_all_values(tmp_path):
    run_dir = tmp_path / "demo"
    first = start(run_dir)
    first.log({"train/loss": 1.5, "eval/loss": float("inf")}, 3)
    first.close()
    again = start(run_dir, first_step=4)
    again.log({"train/loss": 1.25}, 6)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run_dir / DATABASE}")
    (experiment,) = (each for each in client.search_experiments() if each.name == "neobert")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "RUNNING"
    assert run.info.run_name == "demo"
    assert run.data.params["optimizer.lr"] == "0.25"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(each.step, each.value) for each in history] == [(3, 1.5), (6, 1.25)]
    again.close()
    assert client.get_run(run.info.run_id).info.status == "FINISHED"


def test_variables_name_server_and_experiment(tmp_path, monkeypatch):
    uri = f"sqlite:///{tmp_path / 'all.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    for name in ("a", "b"):
        start(tmp_path / name).close()
    client = mlflow.MlflowClient(tracking_uri=uri)
    mine = client.get_experiment_by_name("mine")
    assert sorted(run.info.run_name for run in client.search_runs([mine.experiment_id])) == ["a", "b"]
    assert not (tmp_path / "a" / DATABASE).exists()


def test_a_new_run_at_the_path_of_a_deleted_one_is_another_run(tmp_path, monkeypatch):
    uri = f"sqlite:///{tmp_path / 'all.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    run_dir = tmp_path / "demo"
    for loss in (1.5, 1.25):
        session = start(run_dir)
        session.log({"train/loss": loss}, 3)
        session.close()
        shutil.rmtree(run_dir)
    client = mlflow.MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("neobert").experiment_id])
    histories = [client.get_metric_history(run.info.run_id, "train/loss") for run in runs]
    assert sorted([each.value for each in history] for history in histories) == [[1.25], [1.5]]


def test_names_with_characters_that_mlflow_refuses_do_not_drop_it(tmp_path):
    session = start(tmp_path / "demo")
    session.log({"data/share/wiki (en)+1%": 0.25, f"data/share/{'b' * 255}": 0.5, "data/share/本": 0.25}, 1)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'demo' / DATABASE}")
    values = client.get_run(session._id).data.metrics
    assert values["data/share/wiki _en__1_"] == 0.25
    assert values["data/share/本"] == 0.25
    assert len(values) == 3
