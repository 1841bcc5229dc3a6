"""Runs at the start of every Python that a followed program starts; see ``probe/api/following/environment.py``.

Any Python may come here: another version, an environment without msprobe or numpy, a helper that trains nothing. So it
is written for all of them, imports nothing of ours before a framework was imported, and leaves the interpreter as it
would be without us: the user's own ``sitecustomize`` runs, and our folder is not on the path.
"""

import os
import sys
import time

_FOLLOW, _FRAMEWORKS = "MSPROBE_FOLLOW", "MSPROBE_FOLLOW_FRAMEWORKS"
_HERE = os.path.dirname(os.path.abspath(__file__))
_started = time.time()


def _users_own():
    # type: () -> None
    """Run the module that would have been imported without us.

    Raises:
        ImportError: there is none, which ``site`` expects.
    """
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
    sys.modules.pop("sitecustomize", None)
    import sitecustomize  # noqa: F401


def _follow(text):
    # type: (str) -> None
    import importlib.util

    # By its path: nothing else of ours may be imported here, not even the package.
    path = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "import_watch.py")
    spec = importlib.util.spec_from_file_location("_msprobe_import_watch", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def imported(name):
        # type: (str) -> None
        if watch not in sys.meta_path:
            return  # one framework has imported another
        watch.remove()
        try:
            _begin(text)
        except Exception as error:
            _note(text, f"{type(error).__name__}: {error}")

    def failed(name, error):
        # type: (str, Exception) -> None
        _note(text, f"{name} cannot be imported ({type(error).__name__}: {error})")

    watch = module.ImportWatch(os.environ.get(_FRAMEWORKS, "").split(","), imported, failed)


def _begin(text):
    # type: (str) -> None
    import importlib.util
    import json

    given = json.loads(text)
    # The same environment, in which msprobe is run from where it is not installed.
    root = [given["root"]] if given["prefix"] == sys.prefix else []
    sys.path.extend(root)
    try:
        spec = importlib.util.find_spec("probe")
        origin = getattr(spec, "origin", None) or ""
        if not os.path.isdir(os.path.join(os.path.dirname(origin), "api", "following")):
            raise ImportError(f"msprobe cannot be imported by {sys.executable}")
        from probe.api.run import begin_followed
    finally:
        for path in root:
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(path)]
    begin_followed(text, _started)


def _note(text, reason):
    # type: (str, str) -> None
    """Leave a line for the process that began the run, which says it to the user."""
    import json

    try:
        given = json.loads(text)
        # Its arguments may be secrets, and the filter of these is a part of what cannot be imported.
        program = os.path.basename(sys.argv[0])[:300]
        line = {"run": given["run"], "pid": os.getpid(), "program": program, "reason": reason}
        folder = given["arguments"]["dump_path"]
        os.makedirs(folder, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(os.path.join(folder, "unwatched_processes.log"), flags, 0o640)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(json.dumps(line) + "\n")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass  # nowhere to say it; the program must not get it into its own output


def _main():
    # type: () -> None
    text = os.environ.get(_FOLLOW)
    try:
        _users_own()
    finally:
        if text and sys.version_info >= (3, 9):
            try:
                _follow(text)
            except Exception as error:
                _note(text, f"{type(error).__name__}: {error}")


_main()
