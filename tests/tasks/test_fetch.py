"""Hub data through the real clients, against a server of our own: streamed, fetched ahead, read offline."""

import gzip
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from specbench.tasks.fetch import check_locations
from tests.support.hub_server import COMMIT, Worker, serving

TASK = {
    "name": "sums", "version": 1, "title": "Sums", "prompt": "Q: {{ row.question }}", "reference": "{{ row.answer }}",
    "generation": {"max_new_tokens": 4}, "subsets": {"en": {}, "de": {}},
    "dataset": {"split": "test", "data_files": "{subset}/{split}-*.parquet"},
}  # fmt: skip
SHOTS = {"num_shots": 1, "split": "dev", "data_files": "dev.jsonl", "example": "{{ row.question }} {{ row.answer }}"}


def rows(*words: str) -> list[dict[str, Any]]:
    return [{"question": word, "answer": number} for number, word in enumerate(words)]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path, Worker, Worker]]:
    """A hub, the cache, and two clients of them: one with a connection and one without. They do without torch, which
    `datasets` would import for rows that are streamed, and are killed, since taking their modules apart takes long."""
    folder = tmp_path_factory.mktemp("home")
    with serving(folder, "nobody/nothing") as hub:
        settings = {"HF_HOME": str(folder), "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": ""}
        settings["USE_TORCH"] = "0"
        made = [Worker({**settings, "HF_HUB_OFFLINE": offline}) for offline in "01"]
        yield hub, folder, made[0], made[1]
        for worker in made:
            worker.process.kill()
            worker.close()


class Client:
    """A dataset of one test on the hub, and what the clients make of it."""

    def __init__(self, folder: Path, workers: tuple[Any, Path, Worker, Worker], name: str) -> None:
        self.folder, self.name = folder, name
        self.hub, self.cache, self.online, self.offline = workers
        self.hub.folder, self.hub.name, self.hub.refusal = folder / "hub", name, None
        self.hub.renamed, self.hub.refused = {}, {}
        self.hub.requests.clear()

    def task(self, **changes: Any) -> str:
        path = self.folder / "sums.yaml"
        data = {**TASK, **changes}
        if data["dataset"]:
            data["dataset"] = {**data["dataset"], "path": data["dataset"].get("path", self.name)}
        path.write_text(yaml.safe_dump(data, sort_keys=False))
        return str(path)

    def load(self, task: str, subset: str, offline: bool = False) -> Any:
        """Location, commit and prompts, or the error."""
        return (self.offline if offline else self.online).ask("load", task, subset)[0]

    def fetch(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        code, out, err = self.online.ask("fetch", *arguments)
        return code, out, err

    def files(self) -> set[str]:
        """The files of the dataset that were asked for."""
        return {request.partition(COMMIT + "/")[2] for request in self.hub.requests if "/resolve/" in request}


@pytest.fixture
def client(tmp_path: Path, workers: tuple[Any, Path, Worker, Worker]) -> Client:
    folder = tmp_path / "hub"
    for subset in ("en", "de"):
        (folder / subset).mkdir(parents=True)
        for part in (0, 1):
            table = pa.Table.from_pylist(rows(f"{subset}{part}a", f"{subset}{part}b"))
            pq.write_table(table, folder / subset / f"test-{part}.parquet")
        (folder / subset / "train-0.parquet").write_bytes(b"never read")
    (folder / "dev.jsonl").write_text(json.dumps({"question": "dev", "answer": 7}) + "\n")
    with zipfile.ZipFile(folder / "en.zip", "w") as archive:
        archive.writestr("en/test.jsonl", "".join(json.dumps(row) + "\n" for row in rows("zipped1", "zipped2")))
    return Client(tmp_path, workers, f"someone/{tmp_path.name}".replace("[", "-").replace("]", "-").strip("-"))


def test_streaming_reads_the_named_files_alone(client: Client) -> None:
    location, revision, prompts = client.load(client.task(), "en")
    assert (location, revision) == (f"{client.name}:en/test-*.parquet:test", COMMIT)
    assert prompts == ["Q: en0a", "Q: en0b", "Q: en1a", "Q: en1b"]
    assert {file for file in client.files() if file.endswith(".parquet")} == {"en/test-0.parquet", "en/test-1.parquet"}


def test_what_was_fetched_is_read_without_a_connection(client: Client) -> None:
    task = client.task(fewshot=SHOTS)
    online = client.load(task, "en")
    code, out, err = client.fetch("--task", task, "--subset", "en")
    assert code == 0, err
    first, second = out.strip().splitlines()
    assert first.startswith(f"sums/en: {client.name}:en/test-*.parquet:test at {COMMIT[:12]}: 4 rows, ")
    assert "test-0.parquet … (2 files)" in first and ": 1 row, " in second and second.endswith("dev.jsonl")
    client.hub.requests.clear()
    assert client.load(task, "en", offline=True) == online
    assert client.hub.requests == []
    assert "could not be read from the hub: " in client.load(task, "de", offline=True)


def test_files_that_were_fetched_are_not_fetched_again(client: Client) -> None:
    task = client.task()
    assert client.fetch("--task", task)[0] == 0
    assert client.files() == {f"{subset}/test-{part}.parquet" for subset in ("en", "de") for part in (0, 1)}
    client.hub.requests.clear()
    assert client.load(task, "de")[2][0] == "Q: de0a"
    assert client.files() == set()


def test_a_file_deleted_from_the_cache_is_read_from_the_hub_again(client: Client) -> None:
    task = client.task(dataset={"split": "dev", "data_files": "{split}.jsonl"})
    assert client.fetch("--task", task, "--subset", "en")[0] == 0
    for path in client.cache.rglob(f"*{client.name.partition('/')[2]}/snapshots/*/dev.jsonl"):
        path.unlink()
    assert client.load(task, "en")[2] == ["Q: dev"]
    assert "could not be read from the hub: " in client.load(task, "en", offline=True)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_member_of_an_archive(client: Client, ahead: bool) -> None:
    dataset = {**TASK["dataset"], "data_files": "{subset}.zip", "archive_member": "{subset}/{split}.jsonl"}  # type: ignore[dict-item]
    task = client.task(dataset=dataset)
    if ahead:
        code, out, _ = client.fetch("--task", task, "--subset", "en")
        assert code == 0 and "en.zip:en/test.jsonl at " in out and ": 2 rows, " in out
    location, _, prompts = client.load(task, "en", offline=ahead)
    assert (location, prompts) == (f"{client.name}:en.zip:en/test.jsonl", ["Q: zipped1", "Q: zipped2"])
    missing = client.task(dataset={**dataset, "archive_member": "en/tset.jsonl"})
    assert "has no file 'en/tset.jsonl': did you mean 'en/test.jsonl'" in client.load(missing, "en")


TABLE = 'question\tanswer\tnote\n"Why? he said\t007\tNA\nhow "so"?\t1.50\t\n'
QUOTED = 'question,answer,note\n"Why, ""he"" said",007,NA\nhow?,1.50,\n'


@pytest.mark.parametrize(
    "name",
    ["en.csv.gz", "tables/en-*.tsv", *(pytest.param(name, marks=pytest.mark.slow) for name in ("en.tsv.gz", "en.csv"))],
)
def test_a_table_is_the_same_streamed_and_fetched(client: Client, name: str) -> None:
    text = (QUOTED if ".csv" in name else TABLE).encode()
    path = client.folder / "hub" / name.replace("*", "0")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    dataset = {"split": "test", "data_files": name}
    prompt = "{{ row.question }}|{{ row.answer }}|{% if row.note %}{{ row.note }}{% endif %}"
    task = client.task(dataset=dataset, prompt=prompt)
    streamed = client.load(task, "en")
    expected = (
        ['Why, "he" said|007|NA', "how?|1.50|"] if ".csv" in name else ['"Why? he said|007|NA', 'how "so"?|1.50|']
    )
    assert streamed[2] == expected
    assert client.fetch("--task", task, "--subset", "en")[0] == 0
    assert client.load(task, "en", offline=True) == streamed


def test_a_table_that_cannot_be_read_is_of_the_hub(client: Client) -> None:
    task = client.task(dataset={"split": "test", "data_files": "no.tsv"})
    problem = client.load(task, "en")
    assert "could not be read from the hub: " in problem and "give local files with --data FOLDER" in problem


@pytest.mark.parametrize("ahead", [True, False])
def test_the_last_rows_of_files_that_are_downloaded_for_them(client: Client, ahead: bool) -> None:
    task = client.task(dataset={**TASK["dataset"], "last_rows": 3})  # type: ignore[dict-item]
    if ahead:
        assert client.fetch("--task", task, "--subset", "de")[0] == 0
    location, _, prompts = client.load(task, "de", offline=ahead)
    assert location == f"{client.name}:de/test-*.parquet:test:last 3 rows"
    assert prompts == ["Q: de0b", "Q: de1a", "Q: de1b"]
    client.hub.requests.clear()
    assert client.load(task, "de")[2] == prompts
    assert "GET" not in {request.split()[0] for request in client.hub.requests if "/resolve/" in request}


def test_the_first_rows_are_streamed_and_not_fetched(client: Client) -> None:
    task = client.task(dataset={**TASK["dataset"], "first_rows": 2})  # type: ignore[dict-item]
    location, _, prompts = client.load(task, "en")
    assert (location, prompts) == (f"{client.name}:en/test-*.parquet:test:first 2 rows", ["Q: en0a", "Q: en0b"])
    client.hub.requests.clear()
    code, _, err = client.fetch("--task", task)
    assert code == 2 and "sums/en: takes the first 2 rows of " in err and client.hub.requests == []
    assert "--set dataset.first_rows=null" in err and len(err.strip().splitlines()) == 1
    code, out, err = client.fetch("--task", task, "--subset", "en", "--set", "dataset.first_rows=null")
    assert code == 0 and ": 4 rows, " in out, err
    assert client.load(task, "en", offline=True) == [location, COMMIT, prompts]


def test_first_rows_are_counted_after_the_reader(client: Client) -> None:
    rows = [{"lang-id": code, "question": f"{code}{n}", "answer": n} for code in ("bn", "en") for n in range(4)]
    (client.folder / "hub" / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = {"split": "train", "data_files": "all.jsonl", "first_rows": 2}
    task = client.task(dataset=dataset, subsets={"en": {"reader": "mcot_en"}})
    assert client.load(task, "en")[2] == ["Q: en0", "Q: en1"]


def test_another_split(client: Client) -> None:
    for path in (client.folder / "hub").rglob("train-0.parquet"):
        pq.write_table(pa.Table.from_pylist(rows("t1", "t2", "t3")), path)
    code, out, _ = client.fetch("--task", client.task(), "--subset", "en", "--split", "train")
    assert code == 0 and "en/train-*.parquet:train at " in out and ": 3 rows, " in out


@pytest.mark.parametrize(
    ("changes", "arguments", "expected"),
    [
        ({"dataset": None}, (), "subset 'en': is not on the hub: run it with --data FOLDER"),
        ({}, ("--subset", "fr"), "--subset fr: none of the tasks has it: "),
        ({}, ("--split", "dev"), "has no file 'en/dev-*.parquet': correct the key dataset.data_files"),
    ],
)
def test_mistakes_are_one_line(client: Client, changes: dict[str, Any], arguments: tuple[str], expected: str) -> None:
    code, _, err = client.fetch("--task", client.task(**changes), *arguments)
    assert code == 2 and expected in err and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        ((403, {"X-Error-Code": "GatedRepo"}), "and log in, or "),
        ((401, {"X-Error-Code": "RepoNotFound"}), "RepositoryNotFoundError"),
        ((500, {}), "could not be read from the hub: "),
    ],
)
def test_a_refusal_is_one_line(client: Client, refusal: tuple[int, dict[str, str]], expected: str) -> None:
    client.hub.refusal = refusal
    problem = client.load(client.task(), "en")
    assert expected in problem and "give local files with --data FOLDER" in problem and "\n" not in problem
    code, _, err = client.fetch("--task", client.task())
    said = err.strip().splitlines()[-1]
    assert code == 2 and expected in said and "(specbench run --data FOLDER)" in said and "sample" not in said


def test_a_configuration_is_fetched_by_what_the_dataset_says_of_its_files(client: Client) -> None:
    files = [{"split": split, "path": f"de/{split}-*.parquet"} for split in ("test", "train")]
    card = {"configs": [{"config_name": "de", "data_files": files}]}
    (client.folder / "hub" / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n# Sums\n")
    task = client.task(dataset={"name": "{subset}", "split": "test"})
    code, out, err = client.fetch("--task", task, "--subset", "de")
    assert code == 0, err
    assert f"{client.name}:de:test at " in out and ": 4 rows, " in out
    location, _, prompts = client.load(task, "de", offline=True)
    assert (location, prompts[0], len(prompts)) == (f"{client.name}:de:test", "Q: de0a", 4)
    assert {file for file in client.files() if file.endswith(".parquet")} == {"de/test-0.parquet", "de/test-1.parquet"}


GATED = (403, {"X-Error-Code": "GatedRepo"})
ABSENT = (404, {"X-Error-Code": "RepoNotFound"})


def test_a_mirror_is_read_when_the_data_set_cannot_be(client: Client) -> None:
    client.hub.refused = {"closed/sums": GATED, "gone/sums": ABSENT}
    mirrors = [{"path": "gone/sums"}, {"path": client.name, "data_files": "{subset}/{split}-1.parquet"}]
    task = client.task(dataset={**TASK["dataset"], "path": "closed/sums", "mirrors": mirrors})  # type: ignore[dict-item]
    location, revision, prompts = client.load(task, "de")
    assert (location, revision) == (f"{client.name}:de/test-1.parquet:test", COMMIT)
    assert prompts == ["Q: de1a", "Q: de1b"]
    code, out, err = client.fetch("--task", task, "--subset", "de")
    assert code == 0 and out.startswith(f"sums/de: {client.name}:de/test-1.parquet:test at "), err
    assert client.load(task, "de", offline=True) == [location, revision, prompts]


def test_a_mirror_has_the_layout_of_the_data_set_unless_it_gives_one(client: Client) -> None:
    client.hub.refused = {"closed/sums": GATED}
    dataset = {**TASK["dataset"], "path": "closed/sums", "mirrors": [{"path": client.name}]}  # type: ignore[dict-item]
    assert client.load(client.task(dataset=dataset), "de")[2][:3] == ["Q: de0a", "Q: de0b", "Q: de1a"]


def test_the_problems_of_all_mirrors_are_one_line(client: Client) -> None:
    client.hub.refused = {"closed/sums": GATED, "gone/sums": ABSENT}
    dataset = {**TASK["dataset"], "path": "closed/sums", "mirrors": [{"path": "gone/sums"}]}  # type: ignore[dict-item]
    problem = client.load(client.task(dataset=dataset), "de")
    assert "dataset 'closed/sums'" in problem and "; mirror: dataset 'gone/sums'" in problem and "\n" not in problem
    problem = client.load(client.task(dataset=dataset), "de", offline=True)
    assert "dataset 'closed/sums'" in problem and "mirror" not in problem, "there is no hub to try it on"


def test_a_check_of_locations_that_are_there(client: Client) -> None:
    task = client.task(fewshot=SHOTS, dataset={**TASK["dataset"], "last_rows": 3})  # type: ignore[dict-item]
    code, out, err = client.fetch("--check", task)
    assert code == 0, err
    place = f"{client.name}:{{}}/test-*.parquet:test (main): there: 2 examples read"
    lines = [f"sums/{subset}: {place.format(subset)}" for subset in ("en", "de")]
    assert out.splitlines() == [*lines, "2 there"]
    assert "de/test-1.parquet" not in client.files(), "it reads the first rows alone"


def test_a_check_downloads_no_archive(client: Client) -> None:
    dataset = {**TASK["dataset"], "data_files": "{subset}.zip", "archive_member": "{subset}/{split}.jsonl"}  # type: ignore[dict-item]
    code, out, _ = client.fetch("--check", client.task(dataset=dataset), "--subset", "en")
    assert code == 0 and "en.zip:en/test.jsonl (main): there" in out
    assert "could not be read from the hub: " in client.load(client.task(dataset=dataset), "en", offline=True)


def test_a_check_says_that_a_data_set_has_a_new_name(client: Client) -> None:
    client.hub.renamed = {"old/sums": client.name}
    code, out, _ = client.fetch(
        "--check", client.task(dataset={**TASK["dataset"], "path": "old/sums"}), "--subset", "en"
    )  # type: ignore[dict-item]
    assert code == 1 and out.splitlines()[-1] == "1 moved"
    assert f"(main): moved: its name is now {client.name}: 2 examples read" in out


def test_a_check_says_that_files_moved_within_the_data_set(client: Client) -> None:
    (client.folder / "hub" / "en").rename(client.folder / "hub" / "english")
    code, out, _ = client.fetch("--check", client.task())
    first, second, last = out.splitlines()
    assert code == 1 and ": not there: " in first and ": there: " in second and last == "1 not there, 1 there"


@pytest.mark.parametrize(("refusal", "state", "exit_code"), [(GATED, "gated", 0), (ABSENT, "not there", 1)])
def test_a_check_of_a_closed_data_set(
    client: Client, refusal: tuple[int, dict[str, str]], state: str, exit_code: int
) -> None:
    client.hub.refused = {"closed/sums": refusal}
    dataset = {**TASK["dataset"], "path": "closed/sums", "mirrors": [{"path": client.name}]}  # type: ignore[dict-item]
    code, out, _ = client.fetch("--check", client.task(dataset=dataset), "--subset", "en")
    first, second, _ = out.splitlines()
    assert code == exit_code and f": {state}: " in first and ": there: " in second


@pytest.mark.parametrize("files", ["{subset}/{split}-*.parquet", "en.tsv", "{subset}.zip"])
def test_a_check_of_a_data_set_whose_files_alone_are_closed(client: Client, files: str) -> None:
    (client.folder / "hub" / "en.tsv").write_text(TABLE)
    client.hub.refused = {f"{client.name}/resolve": GATED}
    archive = {"archive_member": "{subset}/{split}.jsonl"} if files.endswith(".zip") else {}
    task = client.task(dataset={"split": "test", "data_files": files, **archive})
    code, out, _ = client.fetch("--check", task, "--subset", "en")
    assert code == 0 and ": gated: accept its terms" in out, out


def test_a_check_of_a_data_set_that_is_a_script(client: Client) -> None:
    folder = client.folder / "hub"
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (folder / f"{client.name.partition('/')[2]}.py").write_text("import datasets\n")
    code, out, _ = client.fetch("--check", client.task(dataset={"name": "{subset}", "split": "test"}), "--subset", "en")
    assert code == 1 and ": script only: " in out


def test_a_check_of_other_columns(client: Client) -> None:
    for path in (client.folder / "hub" / "en").glob("test-*.parquet"):
        pq.write_table(pa.Table.from_pylist([{"problem": "1 + 1", "answer": 2}]), path)
    code, out, _ = client.fetch("--check", client.task())
    assert code == 1 and ": other columns: " in out.splitlines()[0] and "no column 'question'" in out.splitlines()[0]
    assert out.splitlines()[-1] == "1 other columns, 1 there"


def test_a_check_of_a_hub_that_does_not_answer(client: Client) -> None:
    client.hub.refusal = 500, {}
    code, out, _ = client.fetch("--check", client.task(), "--subset", "en")
    assert code == 1 and ": unreadable: " in out


def test_a_check_without_a_connection_ends_with_one_line(client: Client) -> None:
    """The line names the hub, and no further location is tried."""
    code, out, _ = client.offline.ask("fetch", "--check", client.task())
    first, last = out.splitlines()
    assert code == 1 and last == "1 unreadable" and client.hub.requests == []
    assert first.startswith(f"sums/en: {client.hub.url}: unreadable: the hub cannot be reached: check the connection")


@pytest.mark.parametrize(
    ("answers", "num_lines"), [("tttttt", 3), ("ttattt", 6), ("ttatta", 6), ("attttt", 4), ("c", 1), ("ac", 2)]
)
def test_a_hub_that_hangs_is_given_up_after_three_times(
    client: Client, monkeypatch: pytest.MonkeyPatch, answers: str, num_lines: int
) -> None:
    """Time-outs in a row end a check, and so does a connection that cannot be made; other answers do not."""
    errors = {"t": TimeoutError("timed out"), "c": ConnectionRefusedError("refused"), "a": ValueError("bad answer")}
    given = iter(answers)

    def info(*_: Any, **named: Any) -> None:
        raise errors[next(given)]

    monkeypatch.setattr("huggingface_hub.dataset_info", info)
    subsets: dict[str, Any] = {f"s{number}": {} for number in range(len(answers))}
    found = [str(each) for each in check_locations([client.task(subsets=subsets)])]
    assert len(found) == num_lines
    is_given_up = answers[:num_lines].endswith(("ttt", "c"))
    assert ("check the connection" in found[-1]) is is_given_up
    assert not any("check the connection" in line for line in found[:-1])


def test_a_check_of_a_task_that_is_not_on_the_hub(client: Client) -> None:
    code, out, _ = client.fetch("--check", client.task(dataset=None))
    assert code == 0 and out.splitlines()[-1] == "2 not on the hub" and client.hub.requests == []


@pytest.mark.parametrize("arguments", [(), ("--task", "mgsm", "--check", "all"), ("--check", ",")])
def test_fetch_needs_either_tasks_or_a_check(client: Client, arguments: tuple[str, ...]) -> None:
    code, _, err = client.fetch(*arguments)
    assert code == 2 and len(err.strip().splitlines()) == 1 and "--check" in err
