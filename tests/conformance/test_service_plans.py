"""Random plans made by the workers of a service, against the list model.

Distributing a plan, or a part of it, does not change its elements.
"""

import collections
import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.data.dataset import ENVIRONMENT
from penstock.data.iterator import Iterator
from penstock.element import nest
from penstock.element.spec import DatasetSpec
from penstock.errors import OpError
from penstock.plan import nodes as n
from penstock.plan.nodes import Node
from penstock.plan.options import Options, ShardingPolicy
from tests.conformance.random_plans import plans
from tests.effort import examples
from tests.engine.driving import MOST, model, reload_state, take_elements
from tests.engine.example_plans import fresh
from tests.engine.list_model import items
from tests.engine.list_values import plain
from tests.integration.clusters import Cluster

MOST_WORKERS = 3
NAMES = itertools.count()


@pytest.fixture(scope="module")
def clusters():
    """Clusters of one, two and three workers, for all examples."""
    made = [Cluster(workers) for workers in range(1, MOST_WORKERS + 1)]
    yield made
    for cluster in made:
        cluster.close()


def parts(plan: Node, path=()):
    """The places in a plan whose elements a service could compute."""
    yield path, plan
    for index, part in enumerate(plan.inputs):
        yield from parts(part, (*path, index))


def travels(plan: Node) -> bool:
    """Whether the elements of a plan can be sent, as far as is known."""
    try:
        spec = ENVIRONMENT.spec(plan)
    except OpError:
        return False
    return not any(isinstance(leaf, DatasetSpec) for leaf in nest.flatten(spec)[0])


def replace_node(plan: Node, path, change) -> Node:
    if not path:
        return change(plan)
    inputs = list(plan.inputs)
    inputs[path[0]] = replace_node(inputs[path[0]], path[1:], change)
    return plan.with_inputs(tuple(inputs))


def distribute_plan(plan: Node, service: str, mode=ShardingPolicy.DYNAMIC) -> Node:
    return n.Distribute(plan, service, int(mode))


def read(plan: Node, most=MOST):
    with Iterator(plan, ENVIRONMENT) as iterator:
        return take_elements(iterator, most)


@given(plans(), st.integers(0, MOST_WORKERS - 1))
@examples(75)
def test_a_distributed_plan_gives_what_the_plan_gives(clusters, plan, number):
    assume(travels(plan))
    assert read(distribute_plan(fresh(plan), clusters[number].target)) == model(plan)


@given(plans(), st.data(), st.integers(0, MOST_WORKERS - 1))
@examples(75)
def test_a_part_of_a_plan_may_come_from_elsewhere(clusters, plan, data, number):
    places = [path for path, part in parts(plan) if travels(part)]
    assume(places)
    path = data.draw(st.sampled_from(places))
    made = replace_node(
        fresh(plan), path, lambda part: distribute_plan(part, clusters[number].target)
    )
    assert read(made) == model(made)


@given(plans(depth=4), st.integers(0, 25), st.integers(0, 2), st.integers(0, 2))
@examples(30)
def test_a_state_fits_other_services_with_other_numbers_of_workers(
    clusters, plan, count, first, second
):
    assume(travels(plan))
    expected = model(plan)
    with Iterator(distribute_plan(fresh(plan), clusters[first].target), ENVIRONMENT) as iterator:
        given_before = take_elements(iterator, count)
        state = reload_state(iterator.state_dict())
    with Iterator(distribute_plan(fresh(plan), clusters[second].target), ENVIRONMENT) as again:
        again.load_state_dict(state)
        assert given_before + take_elements(again, MOST - len(given_before)) == expected


@given(plans(depth=4), st.data(), st.integers(0, 25), st.integers(0, 2))
@examples(30)
def test_a_plan_with_a_distributed_part_resumes(clusters, plan, data, count, number):
    places = [path for path, part in parts(plan) if travels(part)]
    assume(places)
    path = data.draw(st.sampled_from(places))
    target = clusters[number].target

    def build_plan():
        return replace_node(fresh(plan), path, lambda part: distribute_plan(part, target))

    expected = model(build_plan())
    with Iterator(build_plan(), ENVIRONMENT) as iterator:
        given_before = take_elements(iterator, count)
        state = reload_state(iterator.state_dict())
    with Iterator(build_plan(), ENVIRONMENT) as again:
        again.load_state_dict(state)
        assert given_before + take_elements(again, MOST - len(given_before)) == expected


def count_elements(elements):
    return collections.Counter(map(repr, elements))


@given(plans(depth=4).filter(lambda plan: plan.cardinality != n.INFINITE), st.integers(0, 2))
@examples(25)
def test_parallel_epochs_give_all_once_per_worker(clusters, plan, number):
    assume(travels(plan))
    made = distribute_plan(fresh(plan), clusters[number].target, ShardingPolicy.OFF)
    # Every copy but the first is shuffled in an order of its own.
    copies = [items(plan, (0, copy) if copy else (0,)) for copy in range(number + 1)]
    expected = [plain(item) for copy in copies for item in itertools.islice(copy, MOST)]
    assert count_elements(read(made, MOST * 3)) == count_elements(expected)


@given(plans(depth=4), st.integers(0, 2), st.integers(0, 25))
@examples(30)
def test_without_order_every_element_comes_once(clusters, plan, number, count):
    assume(travels(plan) and len(model(plan)) < MOST)
    options = Options()
    options.deterministic = False

    def build_plan():
        whole = n.WithOptions(fresh(plan), options.make_frozen())
        return distribute_plan(whole, clusters[number].target)

    with Iterator(build_plan(), ENVIRONMENT) as iterator:
        given_before = take_elements(iterator, count)
        state = reload_state(iterator.state_dict())
    with Iterator(build_plan(), ENVIRONMENT) as again:
        again.load_state_dict(state)
        assert count_elements(given_before + take_elements(again)) == count_elements(model(plan))


@given(plans(depth=4), st.integers(0, 2), st.integers(0, 25))
@examples(25)
def test_readers_of_a_named_job_share_every_element(clusters, plan, number, count):
    assume(travels(plan) and len(model(plan)) < MOST)
    name = f"job of example {next(NAMES)}"
    node = n.Distribute(fresh(plan), clusters[number].target, 1, job_name=name)
    other = n.Distribute(fresh(plan), clusters[number].target, 1, job_name=name)
    with Iterator(node, ENVIRONMENT) as one, Iterator(other, ENVIRONMENT) as two:
        found = take_elements(one, count)
        found += take_elements(two)
        found += take_elements(one)
    assert count_elements(found) == count_elements(model(plan))
