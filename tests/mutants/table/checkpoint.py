"""Mistakes in src/ontrain/checkpoint."""

from __future__ import annotations

from tests.mutants.mutant import mutant

FOLDER, SHARDS = "checkpoint/test_folder.py", "distributed/test_shards.py"

MUTANTS = [
    mutant("checkpoint/manifest.py", "MOST_TEXT = 256 << 20", "MOST_TEXT = 256 << 32", FOLDER, "for_ever"),
    mutant("checkpoint/folder.py", "for age in range(gap, 0, -1):", "for age in range(1, gap + 1):", FOLDER),
    mutant(
        "checkpoint/folder.py",
        "for oldest in reversed(_present(target)[keep:]):",
        "for oldest in reversed(_present(target)[keep + 1 :]):",
        FOLDER,
    ),
    mutant("checkpoint/folder.py", "sync(partial / MANIFEST)", "pass", FOLDER, "disk or moment"),
    mutant(
        "checkpoint/folder.py",
        "if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:",
        "if not isinstance(keep, int) or keep < 0:",
        FOLDER,
        "keep",
    ),
    mutant("checkpoint/folder.py", "if not isinstance(key, str):", "if False:", FOLDER, "json"),
    mutant(
        "checkpoint/folder.py",
        "if folder.is_symlink() or not folder.is_dir():",
        "if not folder.is_dir():",
        FOLDER,
        "replaced",
    ),
    mutant("checkpoint/folder.py", "shutil.rmtree(_partial(folder), ignore_errors=True)", "pass", FOLDER),
    mutant("checkpoint/manifest.py", "path = folder / Path(name).name", "path = folder / name", FOLDER, "elsewhere"),
    mutant("checkpoint/manifest.py", 'if content.get("format") != FORMAT:', "if False:", FOLDER),
    mutant(
        "checkpoint/shards.py", "if tensor is None or tensor.numel() != stop - start:", "if tensor is None:", SHARDS
    ),
    mutant("checkpoint/shards.py", "if not fits or ends[-1] != math.prod(shape):", "if not fits:", SHARDS),
]
