"""Tests of price files in this project's and in SkyPilot's format, and of the price of a trial's resources."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.cli import app
from tune_policies.benchmarks.decide.price_file import Instance, Prices, load_prices

HEAD = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice,AvailabilityZone\n"
VMS = (
    HEAD
    + """cpu_4x,,,4.0,16.0,0.2,us-east-1,,0.1,a
cpu_4x,,,4.0,16.0,0.16,eu-west-1,,,a
gpu_4x_a100,A100-80GB,4.0,48.0,200.0,12.0,us-east-1,"{'Gpus': [{'Name': 'A100', 'Count': 4.0}]}",6.0,a
gpu_1x_h100,H100,1.0,26.0,200.0,,us-east-1,,,a
,V100,2.0,,,4.96,us-east-1,V100,1.5,a
"""
)
OWN = """
date: 2026-11-01
currency: EUR
instances:
  - {name: c, price: 0.8, cpus: 16}
  - {name: g, price: 4.0, cpus: 16, gpus: 4, accelerator_type: A100, region: eu}
  - {name: g, price: 3.2, cpus: 16, gpus: 4, accelerator_type: A100, region: us}
"""
PARTS = "{date: 2026-11-01, currency: EUR, cpu: 0.05, gpus: {L4: 0.5}}"
FILES = {"vms.csv": VMS, "prices.yaml": OWN, "parts.yaml": PARTS}


@pytest.fixture
def written(tmp_path):
    def write(text, name="vms.csv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_trial_costs_the_larger_of_its_cpu_and_gpu_fractions_of_the_price_of_the_cheapest_machine(written):
    prices = load_prices(written(OWN, "prices.yaml"))

    assert prices.per_hour(cpus=2, gpus=1, accelerator_type="A100").per_hour == pytest.approx(0.8)
    assert prices.per_hour(cpus=8, gpus=1, accelerator_type="A100").per_hour == pytest.approx(1.6)
    assert prices.per_hour(cpus=4).per_hour == pytest.approx(0.2)
    assert (prices.date, prices.currency, prices.source) == ("2026-11-01", "EUR", "prices.yaml")


def test_only_the_chosen_region_is_used(written):
    prices = load_prices(written(OWN, "prices.yaml"), region="eu")

    assert prices.per_hour(cpus=2, gpus=1, accelerator_type="A100") == (1.0, "0.25 of g in eu")


def test_a_machine_without_a_region_has_its_price_in_every_region(written):
    prices = load_prices(written(OWN, "prices.yaml"), region="eu")

    assert prices.per_hour(cpus=4) == (pytest.approx(0.2), "0.25 of c")
    assert [instance.region for instance in prices.instances] == [None, "eu"]


def test_the_prices_of_the_guide_contain_both_devices_in_the_region_of_its_example(written):
    guide = Path(__file__).parents[3] / "docs" / "how-to" / "benchmarks.md"
    text = guide.read_text()
    example = text[text.index("# prices.yaml") :].partition("```")[0]

    prices = load_prices(written(example, "prices.yaml"), region="eu-west-1")

    assert prices.per_hour(cpus=4).per_hour == pytest.approx(0.2)
    assert prices.per_hour(cpus=4, gpus=1, accelerator_type="A10G").per_hour == pytest.approx(1.2)


def test_a_region_that_no_machine_names_is_refused_although_a_machine_has_no_region(written):
    with pytest.raises(InvalidResourcesError, match=r"no prices for the region 'asia' \(known: eu, us\)"):
        load_prices(written(OWN, "prices.yaml"), region="asia")


def test_cpus_and_gpus_can_have_separate_prices():
    prices = Prices(date="2026-11-01", currency="EUR", cpu=0.05, gpus={"L4": 0.5})

    assert prices.per_hour(cpus=4, gpus=1, accelerator_type="L4").per_hour == pytest.approx(0.7)
    assert prices.per_hour(cpus=4).per_hour == pytest.approx(0.2)


def test_the_lowest_price_of_a_gpu_type_applies_whichever_of_its_names_the_lines_contain():
    of_two_names = [
        Instance(name=each, price=price, cpus=8, gpus=1, accelerator_type=each)
        for each, price in (("A100-80G", 2.0), ("A100-80GB", 4.0), ("a100_80gb", 3.0))
    ]
    for instances in (of_two_names, of_two_names[::-1]):
        prices = Prices(date="2026-11-01", currency="EUR", instances=instances)

        assert prices.per_hour(cpus=1, gpus=1, accelerator_type="A100-80G") == (2.0, "1 of A100-80G")


def test_a_gpu_type_with_two_names_and_two_prices_is_refused():
    with pytest.raises(
        InvalidResourcesError, match=r"prices 3 for 'A100-80G' and 4 for 'A100-80GB', .* the same GPU type\. Keep one"
    ):
        Prices(date="2026-11-01", currency="EUR", cpu=0.05, gpus={"A100-80G": 3, "A100-80GB": 4})


def test_a_gpu_type_may_have_two_names_with_one_price():
    prices = Prices(date="2026-11-01", currency="EUR", cpu=0.05, gpus={"A100-80G": 3, "A100-80GB": 3})

    assert prices.per_hour(cpus=1, gpus=1, accelerator_type="A100-80G") == (3.05, "1 A100-80G and 1 CPU")


@pytest.mark.parametrize(
    ("options", "cpu", "a100", "v100"),
    [
        ({}, 0.04, 3.0, 2.48 + 0.05),
        ({"region": "us-east-1"}, 0.05, 3.0, 2.48 + 0.05),
        ({"use_spot": True}, 0.025, 1.5, 0.75 + 0.025),
    ],
    ids=["the cheapest region", "one region", "spot"],
)
def test_a_skypilot_catalog_has_machines_and_gpus_that_can_be_added_to_a_machine(written, options, cpu, a100, v100):
    prices = load_prices(written(VMS), **options)

    assert prices.per_hour(cpus=1).per_hour == pytest.approx(cpu)
    assert prices.per_hour(cpus=1, gpus=1, accelerator_type="A100-80G").per_hour == pytest.approx(a100)
    assert prices.per_hour(cpus=1, gpus=1, accelerator_type="V100").per_hour == pytest.approx(v100)


def test_a_gpu_is_combined_only_with_a_machine_of_its_region(written):
    in_asia = ",V100,1.0,,,1.0,asia-east1,V100,,a\ncpu_8x,,,8.0,32.0,8.0,asia-east1,,,a\n"

    prices = load_prices(written(VMS + in_asia))

    # The GPU costs 1.0 in asia-east1, where a CPU costs 1.0, and 2.48 in us-east-1, where a CPU costs 0.05.
    of_one_cpu = prices.per_hour(cpus=1, gpus=1, accelerator_type="V100")
    assert of_one_cpu == (pytest.approx(1.0 + 1.0), "1 V100 and 0.125 of cpu_8x in asia-east1")
    of_four_cpus = prices.per_hour(cpus=4, gpus=1, accelerator_type="V100")
    assert of_four_cpus == (pytest.approx(2.48 + 0.2), "1 V100 and 1 of cpu_4x in us-east-1")


def test_a_gpu_without_a_machine_in_its_region_has_no_price(written):
    prices = load_prices(written(VMS + ",P4,1.0,,,1.0,asia-east1,P4,,a\n"))

    with pytest.raises(InvalidResourcesError, match="no price for 1 CPU with 1 P4"):
        prices.per_hour(cpus=1, gpus=1, accelerator_type="P4")


def test_the_date_of_a_catalog_is_the_modification_date_of_its_file(written):
    path = written(VMS)
    os.utime(path, (0, 0))

    assert load_prices(path).date == "1970-01-01"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "c,,,4,16,cheap,r,,,a\n", "line 2: Price must be a number, 0 or above, got 'cheap'"),
        (HEAD + "c,,,4,16,-1,r,,,a\n", "line 2: Price must be a number, 0 or above, got '-1'"),
        (HEAD + "c,,,,16,1,r,,,a\n", "no line has a price"),
        (HEAD + "c,,,4,16,0,r,,,a\n", "no line has a price"),
        (HEAD + "g,A100,,4,16,1,r,,,a\n", "no line has a price"),
        (HEAD + "c,,,4,16,1\n", "line 2 has fewer cells than the 10 columns of line 1"),
        (HEAD + "c,,,4,16,1,r,,,a,b\n", "line 2 has more cells than the 10 columns of line 1"),
        (HEAD, "no line has a price"),
        (HEAD.replace("vCPUs", "VCPU"), r"line 1: the column vCPUs is missing; did you mean 'VCPU'\?"),
        ("", "line 1: the column InstanceType is missing"),
    ],
)
def test_an_invalid_catalog_is_refused_with_line_and_column(written, text, message):
    with pytest.raises(InvalidResourcesError, match=message):
        load_prices(written(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("currency: EUR\ncpu: 1\n", "required field 'date' of Prices is missing"),
        ("date: 2026-11-01\ncurrency: EUR\n", "the file contains no price. Set instances, or cpu and gpus"),
        ("date: yesterday\ncurrency: EUR\ncpu: 1\n", "date: .* got 'yesterday'"),
        ("date: 2026-11-01\ncurrency: EUR\ncpu: 0\n", "cpu: .* greater than 0, got 0"),
        (OWN.replace("price: 0.8, ", ""), r"instances\.0: the required field 'price' of Instance is missing"),
        (OWN.replace("gpus: 4, ", ""), "the instance 'g' has gpus=0 and accelerator_type='A100'"),
        (OWN.replace("currency", "curency"), r"unknown field 'curency'; did you mean 'currency'\?"),
        ("{", "line 1: the text is neither JSON .EOF"),
    ],
)
def test_an_invalid_price_file_is_refused_with_the_name_of_the_field(written, text, message):
    with pytest.raises(InvalidResourcesError, match=message):
        load_prices(written(text, "prices.yaml"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"region": "us-east-2"}, r"no prices for the region 'us-east-2'; did you mean 'us-east-1'\?"),
        (
            {"name": "parts.yaml", "region": "eu"},
            "have no region, because the file contains no instances. Omit --region",
        ),
        ({"name": "prices.yaml", "use_spot": True}, "this file contains no spot prices. Use SkyPilot's vms.csv"),
    ],
)
def test_an_invalid_option_raises_an_error_that_explains_it(written, options, message):
    name = options.pop("name", "vms.csv")

    with pytest.raises(InvalidResourcesError, match=message):
        load_prices(written(FILES[name], name), **options)


@pytest.mark.parametrize("option", ["--region=eu", "--spot", "--gpu-type=L4"])
def test_an_option_of_the_prices_without_a_price_file_is_refused(option):
    done = CliRunner().invoke(app, ["decide", "run.json", "--steps-per-trial", "9", option])

    name = option.partition("=")[0]
    assert done.exit_code == 2
    assert f"{name} has no effect without --prices. Pass a price file too, or omit {name}" in done.stderr


def test_the_error_for_a_missing_price_file_contains_its_path(tmp_path):
    with pytest.raises(InvalidResourcesError, match=r"cannot read the price file .*none\.csv"):
        load_prices(tmp_path / "none.csv")


GPUS = Prices(
    date="2026-11-01",
    currency="USD",
    instances=(Instance(name="g", price=1, cpus=8, gpus=1, accelerator_type="A10G"),),
)


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        (
            {"cpus": 1, "gpus": 1, "accelerator_type": "A10"},
            r"no price for 'A10'; did you mean 'A10G'\? \(known: A10G\)",
        ),
        ({"cpus": 1, "gpus": 1}, r"the type of the GPUs is unknown.* Use --gpu-type .*\(known: A10G\)"),
        ({"cpus": 16, "gpus": 1, "accelerator_type": "A10G"}, "no price for 16 CPUs with 1 A10G. Add an instance"),
        ({"cpus": 1}, "no price for 1 CPU without a GPU. Add an instance that is large enough, or the price"),
    ],
)
def test_resources_without_a_price_are_reported(requested, message):
    with pytest.raises(InvalidResourcesError, match=message):
        GPUS.per_hour(**requested)
