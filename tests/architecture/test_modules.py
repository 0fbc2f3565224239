import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture import source_tree

MODULES = source_tree.modules()
READS_ENVIRONMENT = {"src/chairlift/config/load.py"}
ENVIRONMENT_NAMES = frozenset({"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"})


def test_every_module_says_what_it_is_for_and_what_it_does_not_know() -> None:
    assert [source_tree.name_of(path) for path in MODULES if _num_sentences(path) < 2] == []


def _num_sentences(path: Path) -> int:
    docstring = ast.get_docstring(source_tree.syntax_tree(path)) or ""
    return len(re.findall(r"\w[^.!?]*[.!?:](?=\s|$)", docstring))


def _environment_uses(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT_NAMES:
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            yield from (node.lineno for alias in node.names if alias.name in ENVIRONMENT_NAMES)


def test_only_one_module_touches_the_environment() -> None:
    found = {source_tree.name_of(path) for path in MODULES if list(_environment_uses(source_tree.syntax_tree(path)))}
    assert found == READS_ENVIRONMENT


def _import_time_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls that run when the module is imported: not those in function bodies, lambdas or default-less annotations."""
    pending: list[ast.AST] = [node for node in tree.body if not _is_main_guard(node)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending.extend(node.decorator_list)
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.Call):
            yield node
        pending.extend(ast.iter_child_nodes(node))


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


FORBIDDEN_AT_IMPORT = re.compile(
    r"^(open|print|exec|eval|time\..*|.*\.(start|connect|bind|read_text|write_text|is_available|device_count|seed"
    r"|set_num_threads|set_default_dtype|basicConfig|run|Popen|set_start_method|simplefilter|filterwarnings))$"
)


def test_nothing_happens_when_a_module_is_imported() -> None:
    found = [
        f"{source_tree.name_of(path)}:{call.lineno} {ast.unparse(call.func)}"
        for path in MODULES
        for call in _import_time_calls(source_tree.syntax_tree(path))
        if FORBIDDEN_AT_IMPORT.match(ast.unparse(call.func))
    ]
    assert found == []


def test_no_path_of_one_machine_is_in_the_tree() -> None:
    homes = ("work", "root", "home/[a-z]", "Users/[a-z]", "farm", "mnt/[a-z]")
    pattern = re.compile(r"(?<![\w.~/-])/(" + "|".join(homes) + r")[\w-]*/")
    found = [
        f"{source_tree.name_of(path)}: {match.group()}"
        for path in source_tree.text_files()
        for match in pattern.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


OVERRIDES = {"get_command", "_get_field_parts"}  # names of click and gguf, not ours


def test_names_say_what_they_do_without_get() -> None:
    found = [
        f"{source_tree.name_of(path)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in ast.walk(source_tree.syntax_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith(("get_", "_get_"))
        and node.name not in OVERRIDES
    ]
    assert found == []
