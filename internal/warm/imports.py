"""What the fork server imports, and whether the files of it have changed since."""

import _frozen_importlib_external as _loaders
import os
import sys


def plain_imports(source, path, local):
    """Names that the top level of a program imports: [(module, names)]. Modules in the folder local are left
    out: they may look at the worker that they are in, and change between lives."""
    import ast

    found = []
    for node in ast.parse(source, path).body:
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append((node.module, [alias.name for alias in node.names if alias.name != "*"]))
    return [(name, names) for name, names in found
            if name.split(".")[0] not in ("__future__", "__main__") and not is_local(name, local)]


def is_local(name, folder):
    spec = _loaders.PathFinder.find_spec(name.split(".")[0])
    if spec is None:
        return False  # built in, or missing, which the import will say
    places = list(spec.submodule_search_locations or ()) + [spec.origin or ""]
    return any(os.path.realpath(place).startswith(os.path.join(os.path.realpath(folder), "")) and
               not installed(place) for place in places)


def installed(path):
    """Whether a file is of the library or of an installed package."""
    library = os.path.dirname(os.__file__) + "/"
    return "/site-packages/" in path or "/dist-packages/" in path or path.startswith(library)


def program_text(kind, target):
    """The program's source and its name, found without importing anything."""
    if kind == "command":
        return target, "<string>"
    path = target
    if kind == "module":
        places = None
        for part in target.split("."):
            spec = _loaders.PathFinder.find_spec(part, places)
            if spec is None:
                raise ImportError("no module named %r" % target)
            places = spec.submodule_search_locations
        if places is not None:
            spec = _loaders.PathFinder.find_spec("__main__", places)
        path = spec and spec.origin
    with open(path, "rb") as f:
        return f.read(), path


def expand(wanted, kind, target):
    """The modules to import, with "auto" replaced by what the program imports."""
    out = []
    for name in wanted:
        if name == "auto":
            local = os.path.dirname(os.path.realpath(target)) if kind == "script" else os.getcwd()
            out += plain_imports(*program_text(kind, target), local)
        else:
            out.append((name, ()))
    return out


def preload(wanted, kind, target, tell):
    """Import everything, telling of each; returns the names, or raises RuntimeError with why not."""
    me = os.getpid()
    try:
        modules = expand(wanted, kind, target)
    except BaseException as e:
        raise RuntimeError("read what %s imports: %s" % (target, in_words(e)))
    for name, names in modules:
        tell("importing", name)
        try:
            __import__(name, None, None, names)
        except BaseException as e:
            if os.getpid() == me:
                raise RuntimeError("import %s: %s" % (name, in_words(e)))
        if os.getpid() != me:
            os._exit(0)  # a module has forked, and this is not the fork server
    return list(dict.fromkeys(name for name, _ in modules))


def in_words(e):
    lines = str(e).strip().splitlines()
    return type(e).__name__ + (": " + lines[0][:300] if lines else "")


def watched_files(made):
    """The files of imported modules that are no installed ones, with what tells a change. Those in the folders
    made were written by what was imported, for this process."""
    files = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(path, str) and not installed(path) and not path.startswith(tuple(f + "/" for f in made)):
            files[path] = stamp(path)
    return files


def stamp(path):
    try:
        st = os.stat(path)
    except OSError:
        return None
    return st.st_mtime_ns, st.st_size, st.st_ino


def changed(files):
    """Which of the watched files is not what it was; empty if none."""
    for path, was in files.items():
        if stamp(path) != was:
            return path
    return ""
