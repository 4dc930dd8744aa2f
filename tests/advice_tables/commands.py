"""Advice in messages about the options and arguments of commands."""

from tests.advice import AdviceTable, Row, named
from tests.advice_tables.commands_in_folder import FILES, command, program

ROWS = [
    Row(
        "command('plan gpu.yaml cpu.yaml --cluster cluster.json --plot plan.svg')",
        "Pass one policy",
        "command('plan gpu.yaml --cluster cluster.json --plot plan.svg')",
    ),
    Row(
        "command('plan gpu.yaml --cluster cluster.json --address 127.0.0.1:1')",
        "Omit --address or --cluster",
        "command('plan gpu.yaml --cluster cluster.json')",
    ),
    Row(
        "command('plan gpu.yaml --name trials')",
        "--name requires a cluster file. Pass the file with --cluster",
        "command('plan gpu.yaml --name trials --cluster raycluster.yaml')",
    ),
    Row(
        "command('plan gpu.yaml --cluster catalog.yaml --nodes priced.yaml')",
        "Add price_per_hour to the nodes in catalog.yaml",
        "command('plan gpu.yaml --cluster catalog.yaml', catalog_yaml=FILES['priced.yaml'])",
    ),
    Row(
        "command('plan gpu.yaml --cluster cluster.json --nodes priced.yaml')",
        "Omit --nodes",
        "command('plan gpu.yaml --cluster cluster.json')",
    ),
    Row(
        "command('kuberay design gpu.yaml cpu.yaml --num-trials 2 --nodes catalog.yaml --output a.yaml')",
        "Pass one policy",
        "command('kuberay design gpu.yaml --num-trials 2 --nodes catalog.yaml --output a.yaml')",
    ),
    Row(
        "command('plan gpu.yaml --cluster cluster.json --trial-hours 1')",
        "--trial-hours requires the number of trials. Pass it with --num-trials",
        "command('plan gpu.yaml --cluster cluster.json --trial-hours 1 --num-trials 4')",
    ),
    Row("command('exec')", "Pass a policy file and a program", "program('exec gpu.yaml tune.py')"),
    Row("command('exec gpu.yaml')", "Pass a Python script, or -m and a module", "program('exec gpu.yaml tune.py')"),
    Row("command('exec --audit gpu.yaml tune.py')", "Omit gpu.yaml", "program('exec --audit tune.py')"),
    Row(
        "command('exec gpu.yaml tnue.py')",
        "Pass a Python script, or -m and a module",
        "program('exec gpu.yaml -m tune')",
    ),
]

NAMES = {
    **named(command, program),
    "FILES": FILES,
}

ELSEWHERE = {
    "Pass a file or folder that can be opened": "a file that fails to open: tests/package/planner/test_cli.py",
    "the working folder was deleted": "a shell in a deleted folder: tests/package/planner/test_cli.py",
}

TABLE = AdviceTable(
    parts=("tune_policies/cli",),
    rows=ROWS,
    elsewhere=ELSEWHERE,
    names=NAMES,
)
