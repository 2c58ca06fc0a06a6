"""The card of what was published, for readers and for programs, and what a loader reads of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import onnxruntime as ort

from bitwright._version import __version__
from bitwright.errors import ModelError
from bitwright.jobs.folder import ModelFolder
from bitwright.jobs.publishing.certificate import Certificate
from bitwright.jobs.publishing.samples import SEED
from bitwright.jobs.publishing.variants import VARIANTS, Loader
from bitwright.support import Summarized, counted, show_bytes, show_percent
from bitwright.support.files import make_folder, read_object, write_file

CERTIFICATES = "bitwright.json"
"""The file that programs read."""
_CARD = "README.md"
_MARK = "<!-- variants, by bitwright publish -->"
_LEVELS = ("good", "fair", "float", "slow", "unknown", "poor")
"""The best first, for a choice among variants."""


@dataclass(frozen=True, slots=True, repr=False)
class Published(Summarized):
    """What was written to a folder, what was not and why, and the card that says so."""

    output: Path
    loader: Loader
    certificates: Sequence[Certificate]

    @property
    def written(self) -> list[Certificate]:
        """The variants that are in the folder."""
        return [one for one in self.certificates if one.reason is None]

    def summary(self) -> str:
        """Return a line for each variant."""
        count = counted(len(self.certificates), "variant")
        lines = [f"{len(self.written)} of {count} written to {self.output}"]
        return "\n".join([*lines, *(f"{o.file}: {o.outcome}" for o in self.certificates)])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "loader": self.loader.name,
            "output": str(self.output),
            "versions": {"bitwright": __version__, "onnxruntime": ort.__version__},
            "seed": SEED,
            "variants": msgspec.to_builtins(self.certificates),
        }

    @property
    def _parts(self) -> list[str]:
        return list(dict.fromkeys(one.part for one in self.written))

    def write(self, source: ModelFolder) -> None:
        """Write the card and all other files of the source; programs find the list last."""
        earlier = read_object(self.output / CERTIFICATES)
        kept = self._copy_others(source)
        kept |= {name for one in self.written for name in (*one.hashes, one.page)}
        write_file(self.output / _CARD, self.text(source))
        for name in {*earlier.get("files", ())} - kept:  # what an earlier run lists as its own
            path = PurePosixPath(name)
            if not path.is_absolute() and ".." not in path.parts:
                with suppress(OSError):
                    (self.output / path).unlink()
        document = {**self.to_dict(), "output": ".", "files": sorted(kept)}
        write_file(self.output / CERTIFICATES, json.dumps(document, indent=2) + "\n")

    def _copy_others(self, source: ModelFolder) -> set[str]:
        """Copy what is no model, and return the names.

        Where each variant is a folder, that is whole: parts of which it has no variant are float.
        """
        tops = {f"{one.variant}/" if self.loader.by_variant else "" for one in self.written}
        names = [name for name in source.others if name not in (_CARD, CERTIFICATES)]
        there = {one.file for one in self.written}
        needed = {(top, name) for top in tops for name in names}
        for one in self.certificates if self.loader.by_variant else ():
            lacking = [top for top in tops if f"{top}{one.part}" not in there]
            needed |= {(top, file) for top in lacking for file in source.models[one.part]}
        for top, name in needed:
            target = self.output / top / name
            make_folder(target.parent)
            if name == "config.json" and self.loader.configures:
                write_file(target, self._config(source.root / name))
            else:
                shutil.copyfile(source.root / name, target)
        return {f"{top}{name}" for top, name in needed}

    def _config(self, path: Path) -> str:
        """Return the configuration with what transformers.js loads where nothing is asked for."""
        config = read_object(path)
        if not config:
            raise ModelError(f"{str(path)!r} is no configuration of a model: it is not an object.")
        section = dict(config.get("transformers.js_config") or {})
        devices = dict(section.get("device_config") or {})
        for device in ("wasm", "webgpu"):
            chosen = ((p, self.best(p, gpu=device == "webgpu")) for p in self._parts)
            dtypes = {PurePosixPath(p).stem: one.variant for p, one in chosen if one is not None}
            devices[device] = {**(devices.get(device) or {}), "dtype": dtypes}
        section |= {"dtype": devices["wasm"]["dtype"], "device_config": devices}
        if external := {Path(o.file).name: 1 for o in self.written if len(o.hashes) > 1}:
            section["use_external_data_format"] = external
        return json.dumps({**config, "transformers.js_config": section}, indent=2) + "\n"

    def best(self, part: str, *, gpu: bool) -> Certificate | None:
        """Return the variant of a part to take: the smallest of those that are closest to float.

        On CPUs one that is slower than float is only taken where there is no other.
        """
        ours = [one for one in self.written if one.part == part]
        places = ("any", "gpu" if gpu else "cpu")
        ours = [one for one in ours if VARIANTS[one.variant].runs_on in places]
        return min(ours, key=_rank, default=None)

    def text(self, source: ModelFolder) -> str:
        """Return the card, behind what the source says of itself."""
        if _CARD in source.others:
            said = (source.root / _CARD).read_text(encoding="utf-8", errors="replace")
            start = said.partition(_MARK)[0].rstrip() + f"\n\n{_MARK}\n"
        else:
            library = "transformers.js" if self.loader.configures else "onnx"
            start = f"---\nlibrary_name: {library}\ntags:\n- onnx\n- quantized\n---\n"
        return f"{start}\n{self._tables()}"

    def _tables(self) -> str:
        most = max(self.written, key=lambda one: one.samples, default=Certificate(part=""))
        rows = [
            (
                *(f"[{one.file}]({one.file})", one.variant, show_bytes(one.size)),
                *(_accuracy(one), one.time, one.level, VARIANTS[one.variant].use),
            )
            for one in self.written
        ]
        kind = "random samples" if most.random else "samples of data"
        blocks = [
            "# Variants",
            f"Each file was opened in ONNX Runtime {ort.__version__} and run beside the float "
            f"model on {most.samples} {kind} before it got its name. Time is that of one thread "
            "of a CPU, beside the prepared float model; wasm: in onnxruntime-web, by node.",
            _table(("file", "variant", "size", "loss", "time over float", "level", "use"), rows),
        ]
        for part in self._parts:
            for gpu, place in ((False, "CPUs"), (True, "GPUs")):
                if (best := self.best(part, gpu=gpu)) is not None:
                    blocks.append(f"On {place} take **{best.variant}** of {part} ({best.file}).")
        why = [(o.file, o.variant, o.reason) for o in self.certificates if o.reason is not None]
        blocks += ["## Not written", _table(("file", "variant", "why"), why)] if why else []
        return "\n\n".join(blocks) + "\n"


def _rank(one: Certificate) -> tuple[int, int]:
    slow = one.own_clock is not None and one.own_clock.is_slower
    return (_LEVELS.index("slow" if slow else one.level), one.size)


def _accuracy(one: Certificate) -> str:
    if one.loss is None:
        return "none"
    spread = map(show_percent, one.loss_interval or ())
    parts = [
        f"{show_percent(one.loss)} %",
        *([f"({' to '.join(spread)})"] * bool(one.loss_interval)),
    ]
    parts.append(f"most on sample {one.worst_sample}")
    if one.agreement is not None:
        parts.append(f"same answers {show_percent(one.agreement)} %")
    return ", ".join(parts)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [columns, ["---"] * len(columns), *rows]
    lines = ([text.replace("|", "\\|").replace("\n", " ") for text in row] for row in cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
