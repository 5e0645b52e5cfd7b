"""Download a model from the Hugging Face hub."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
from huggingface_hub.utils.tqdm import tqdm

from workers.models.errors import DownloadFailed, ModelError, ModelUnsupported
from workers.models.folder import check_folder
from workers.models.messages import OnProgress, Progress, ignore

# What mlx-lm takes, save Python files: no code of a model's author is ever run.
PATTERNS = [
    "*.json",
    "*.jsonl",
    "*.jinja",
    "*.tiktoken",
    "*.txt",
    "model*.safetensors",
    "tiktoken.model",
    "tokenizer.model",
]
_REPORT_SECONDS = 0.2
_ELSEWHERE = (
    "download it on a machine that can (`hf download {0} --local-dir FOLDER`) "
    "and give that folder with --model"
)


def find_cached(repo: str) -> Path | None:
    """The model in the hub's own cache on this machine, if it is complete; no network."""
    try:
        folder = Path(snapshot_download(repo, allow_patterns=PATTERNS, local_files_only=True))
        check_folder(folder)
    except (LocalEntryNotFoundError, ModelError, OSError, ValueError):
        return None
    return folder


def download(repo: str, folder: Path, progress: OnProgress) -> str:
    """Download a model's files into a folder, without those that are whole there already.

    Returns:
        The commit that was downloaded.

    Raises:
        ModelUnsupported: the repository has no weights in mlx-lm's format.
        DownloadFailed: no network, no such repository, or no right to read it.
    """
    # What a killed download left of a file is under a name that nothing asks for again.
    for orphan in folder.glob(".cache/**/*.incomplete"):
        orphan.unlink()
    try:
        commit = HfApi().model_info(repo).sha
        plan: list[Any] = snapshot_download(
            repo,
            revision=commit,
            local_dir=folder,
            allow_patterns=PATTERNS,
            dry_run=True,
            tqdm_class=_bar(ignore, 0, 0),
        )
        names = {file.filename for file in plan}
        if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
            raise ModelUnsupported(
                f"{repo} has no config.json with model*.safetensors; a .gguf file of it can be "
                "downloaded by hand and given with --model"
            )
        total = sum(file.file_size or 0 for file in plan)
        there = sum(file.file_size or 0 for file in plan if not file.will_download)
        snapshot_download(
            repo,
            revision=commit,
            local_dir=folder,
            allow_patterns=PATTERNS,
            tqdm_class=_bar(progress, there, total),
        )
    except ModelError:
        raise
    except Exception as error:
        # Whatever it is, and whichever HTTP library raised it: the model did not come.
        raise DownloadFailed(_explain(repo, error)) from error
    for file in plan:
        # Where the hub goes away in between, the library may return what there is.
        if not (folder / file.filename).is_file():
            raise DownloadFailed(
                f"the download of {repo} is incomplete: {file.filename}; try again"
            )
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    progress(Progress(phase="downloading", done_bytes=total, total_bytes=total))
    return commit or "main"


def _explain(repo: str, error: Exception) -> str:
    elsewhere = _ELSEWHERE.format(repo)
    if isinstance(error, GatedRepoError):
        return f"{repo} asks for its licence to be accepted on the hub; then set HF_TOKEN"
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"there is neither a folder nor a hub model {repo} (a private one needs HF_TOKEN); "
            "check the name"
        )
    [first, *_] = str(error).strip().splitlines() or [""]
    return f"cannot download {repo} ({type(error).__name__}: {first[:300]}); {elsewhere}"


def _bar(progress: OnProgress, there: int, total: int) -> type[tqdm]:
    """A progress bar that draws nothing and reports bytes, on top of those that are there.

    The library makes several bars: one counts files, one bytes received, one bytes written.
    Bytes written are what is done; the greatest count of bytes is that one or close to it.
    """
    counts: dict[int, float] = {}
    last = time.monotonic()

    class Bar(tqdm):  # type: ignore[misc, unused-ignore]
        def __init__(self, *args: Any, **options: Any) -> None:
            self._counts_bytes = options.get("unit") == "B"
            super().__init__(*args, **(options | {"disable": True}))  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            nonlocal last
            self.n += n or 0
            if not self._counts_bytes:
                return
            counts[id(self)] = self.n
            if time.monotonic() - last >= _REPORT_SECONDS:
                last = time.monotonic()
                done = min(total, there + int(max(counts.values())))
                progress(Progress(phase="downloading", done_bytes=done, total_bytes=total))

    return Bar
