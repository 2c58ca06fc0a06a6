"""Print names of the standard library's functions, and what their docstrings say, as JSON."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable

DOCUMENTED = (
    "argparse array ast base64 bisect calendar cmath codecs collections colorsys configparser "
    "copy csv datetime decimal difflib dis email.utils filecmp fnmatch fractions functools "
    "getpass glob gzip hashlib heapq html imaplib inspect ipaddress itertools json keyword "
    "linecache locale logging math mimetypes operator os os.path pathlib pickle platform pprint "
    "queue quopri random re sched secrets selectors shelve shlex shutil signal smtplib socket "
    "sqlite3 ssl stat statistics string struct subprocess symtable sysconfig tarfile tempfile "
    "textwrap threading time timeit token tokenize traceback types unicodedata urllib.parse "
    "urllib.request uuid warnings wave weakref webbrowser xml.dom xml.sax zipfile zlib"
).split()


def described_functions() -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for module_name in DOCUMENTED:
        module = importlib.import_module(module_name)
        for name, value in sorted(vars(module).items()):
            documentation = inspect.getdoc(value) if callable(value) else None
            if name.startswith("_") or not documentation or not isinstance(value, Callable):
                continue
            if getattr(value, "__module__", None) not in (module_name, f"_{module_name}"):
                continue
            lines = [x for x in documentation.split("\n\n") if "(" not in x.split(" ")[0]]
            if lines and len(lines[0].split()) > 4:
                words = f"{module_name.replace('.', ' ')} {name.replace('_', ' ')}"
                found.setdefault(" ".join(lines[0].split()), words)
    return [(words, text) for text, words in found.items()]


if __name__ == "__main__":
    print(json.dumps(described_functions()))
