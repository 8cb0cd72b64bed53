"""What a worker keeps of a stream and how it answers, without computing elements."""

import random

import pytest

from penstock.service.logic.worker import (
    IDLE,
    NEWEST,
    TAIL,
    TAIL_BLOCKS,
    Block,
    BlockBudget,
    ConsumerPace,
    DecodedMark,
    End,
    KeptBlocks,
    Make,
    Marks,
    Production,
    Serve,
    Stride,
    Wait,
    WantedElements,
)
from penstock.service.protocol import timing


def block(start: int, stop: int, nbytes: int = 1) -> Block:
    return Block(start, stop, nbytes, f"{start}-{stop}", start)


def list_kept(blocks: KeptBlocks, stop: int) -> list[tuple[int, int]]:
    """The ordinals of the kept blocks."""
    found = {found for ordinal in range(stop) if (found := blocks.find(ordinal)) is not None}
    return sorted((one.start, one.stop) for one in found)


class TestStride:
    @pytest.mark.parametrize("of", [1, 2, 5])
    def test_counts_what_one_consumer_counts(self, of):
        for index in range(of):
            stride = Stride(of, index)
            mine = list(range(index, 40, of))
            assert [stride.ordinal(number) for number in range(len(mine))] == mine
            for stop in range(40):
                assert stride.count(stop) == sum(ordinal < stop for ordinal in mine)


class TestPause:
    @pytest.mark.parametrize("random", [True, False])
    def test_begins_nothing_but_serves_what_is_there(self, random):
        production = Production(random=random)
        made = production.decide(WantedElements(0, 4), 0.0)
        assert isinstance(made, Make)
        production.add_block(made.cursor, 2, 1, None)
        assert production.decide(WantedElements(2, 4), 0.0, begins=False) == Wait()
        production.is_paused = True
        assert production.decide(WantedElements(2, 4), 0.0) == Wait()
        assert isinstance(production.decide(WantedElements(1, 4), 0.0, begins=False), Serve)
        production.is_paused = False
        assert isinstance(production.decide(WantedElements(2, 4), 0.0), Make)


class TestKeptBlocks:
    def test_finds_what_was_put(self):
        blocks = KeptBlocks()
        for span in [(10, 20), (0, 5), (30, 31)]:
            blocks.add(block(*span))
        assert list_kept(blocks, 40) == [(0, 5), (10, 20), (30, 31)]
        assert blocks.find(7) is None
        assert [blocks.next_start(0), blocks.next_start(10), blocks.next_start(30)] == [
            10,
            30,
            None,
        ]
        assert blocks.nbytes == 3

    def test_keeps_nothing_twice(self):
        blocks = KeptBlocks()
        blocks.add(block(5, 10))
        assert blocks.add(block(0, 7)) == Block(0, 5, 1, "0-7", 0)
        assert blocks.add(block(6, 12)) == Block(10, 12, 1, "6-12", 6)
        assert blocks.add(block(1, 9)) is None
        assert list_kept(blocks, 20) == [(0, 5), (5, 10), (10, 12)]

    def test_spares_the_oldest_until_a_tail_is_left(self):
        blocks = KeptBlocks()
        for start in range(0, 50, 10):
            blocks.add(block(start, start + 10, 100))
        assert blocks.droppable(50, 250) == [0, 10, 20]
        assert blocks.droppable(25, 250) == [0, 10]
        assert blocks.droppable(50, 500) == []

    def test_spares_many_small_blocks(self):
        blocks = KeptBlocks()
        for start in range(TAIL_BLOCKS + 3):
            blocks.add(block(start, start + 1, 0))
        assert blocks.droppable(1 << 62, 100) == [0, 1, 2]

    def test_agrees_with_a_set_of_ordinals(self):
        rng = random.Random(0)
        blocks, there, starts = KeptBlocks(), set(), {}
        for _ in range(500):
            start = rng.randrange(200)
            put = blocks.add(block(start, start + rng.randrange(1, 20)))
            if put is not None:
                assert there.isdisjoint(range(put.start, put.stop))
                there |= set(range(put.start, put.stop))
                starts[put.start] = put.stop
            if starts and rng.random() < 0.5:
                gone = rng.choice(list(starts))
                there -= set(range(gone, starts.pop(gone)))
                blocks.drop(gone)
            assert {o for o in range(240) if blocks.find(o)} == there
        assert blocks.nbytes == len(blocks) == len(starts)


class TestBlockBudget:
    def test_what_was_not_used_for_long_goes_first(self):
        budget = BlockBudget(30)
        for owner, start in [("a", 0), ("b", 0), ("a", 10)]:
            budget.add(owner, start, 10)
        assert budget.excess() == []
        budget.touch("a", 0)
        budget.add("b", 10, 15)
        assert budget.excess() == [("b", 0), ("a", 10)]

    def test_forgets_an_owner(self):
        budget = BlockBudget(10)
        budget.add("a", 0, 4)
        budget.add("b", 0, 5)
        budget.clear("a")
        budget.remove("b", 7)
        assert budget.nbytes == 5
        budget.touch("a", 0)
        assert budget.excess() == []


class TestConsumerPace:
    def test_who_is_ahead_waits_for_who_is_behind(self):
        pace = ConsumerPace(3)
        for consumer, ordinal in enumerate([30, 10, 20]):
            pace.record(consumer, ordinal, 0.0)
        assert pace.floor == 10
        assert pace.must_wait(0, 0.0, 1.0)
        assert pace.must_wait(2, 0.0, 1.0)
        assert not pace.must_wait(1, 0.0, 1.0)

    def test_no_consumer_waits_without_end(self):
        pace = ConsumerPace(2)
        pace.record(0, 10, 100.0)
        late = 100.0 + timing.PACE
        assert pace.must_wait(0, 100.0, late)
        assert not pace.must_wait(0, 100.0, late + 0.1)
        assert pace.floor == 10
        pace.record(1, 3, late + 1.0)
        assert pace.floor == 3
        assert pace.must_wait(0, 100.0, late + 5.0)


class TestMarks:
    def test_the_best_is_the_last_before(self):
        marks = Marks("start")
        for ordinal in (20, 10, 10):
            marks.add(DecodedMark(ordinal, f"at {ordinal}"))
        found = [marks.best(ordinal).state for ordinal in (0, 9, 10, 19, 20, 99)]
        assert found == ["start", "start", "at 10", "at 10", "at 20", "at 20"]
        marks.remove(10)
        assert marks.best(19).state == "start"
        marks.remove(0)
        assert marks.best(5).state == "start"

    def test_older_ones_are_ever_fewer(self):
        marks = Marks()
        for ordinal in range(10, 100_000, 10):
            marks.add(DecodedMark(ordinal, ordinal))
            assert len(marks) <= NEWEST + 20
        newest = 99_990
        for back in (1, 100, 1000, 10_000, 60_000):
            best = marks.best(newest - back).ordinal
            assert newest - back - best <= 4 * back + 10

    def test_of_large_ones_only_two_stay(self):
        marks = Marks()
        for ordinal in range(1, 50):
            marks.add(DecodedMark(ordinal, ordinal, small=False))
        assert len(marks) == 3
        assert marks.best(48).state == 48


class TestProduction:
    def make(
        self, production: Production, want: WantedElements, count: int, now: float = 0.0
    ) -> Block:
        action = production.decide(want, now, 1 << 30)
        assert isinstance(action, Make)
        assert action.most >= count
        return production.add_block(action.cursor, count, count, "item")[0]

    def test_makes_one_after_the_other_and_serves_again_what_is_kept(self):
        production = Production(random=False)
        assert self.make(production, WantedElements(0, 10), 4).stop == 4
        assert self.make(production, WantedElements(4, 10), 6).stop == 10
        action = production.decide(WantedElements(2, 10), 0.0)
        assert isinstance(action, Serve)
        assert (action.block.start, action.block.stop) == (0, 4)
        assert len(production.cursors) == 1

    def test_what_lies_before_the_wanted_is_made_first(self):
        production = Production(random=False)
        action = production.decide(WantedElements(100, 110), 0.0)
        assert isinstance(action, Make)
        assert (action.cursor.at, action.cursor.state, action.most) == (0, None, 110)

    def test_other_fetches_wait_for_the_cursor_that_makes_the_element(self):
        production = Production(random=False)
        making = production.decide(WantedElements(0, 10), 0.0)
        assert isinstance(making, Make)
        assert production.decide(WantedElements(5, 10), 0.0) == Wait()
        production.add_block(making.cursor, 10, 10, "item")
        assert isinstance(production.decide(WantedElements(5, 10), 0.0), Serve)

    def test_goes_back_to_the_best_mark_and_keeps_the_other_cursor(self):
        production = Production(random=False)
        self.make(production, WantedElements(0, 100), 100)
        production.marks.add(DecodedMark(40, "forty"))
        production.blocks.drop(0)
        action = production.decide(WantedElements(50, 60), 0.0)
        assert isinstance(action, Make)
        assert (action.cursor.at, action.cursor.state, action.most) == (40, "forty", 20)
        assert [cursor.at for cursor in production.cursors] == [100, 40]
        ahead = production.decide(WantedElements(100, 110), 0.0)
        assert isinstance(ahead, Make)
        assert ahead.cursor.at == 100

    def test_a_mark_ahead_of_all_is_used(self):
        production = Production(random=False)
        self.make(production, WantedElements(0, 10), 10)
        production.marks.add(DecodedMark(500, "far"))
        action = production.decide(WantedElements(505, 510), 0.0)
        assert isinstance(action, Make)
        assert action.cursor.state == "far"

    def test_random_access_begins_anywhere_and_ends_where_it_is_kept(self):
        production = Production(random=True, kept=True)
        self.make(production, WantedElements(64, 128), 64)
        assert production.cursors == []
        action = production.decide(WantedElements(10, 128), 0.0)
        assert isinstance(action, Make)
        assert (action.cursor.at, action.cursor.state, action.cursor.stop) == (10, 10, 64)
        assert production.decide(WantedElements(12, 64), 0.0) == Wait()
        assert isinstance(production.decide(WantedElements(200, 300), 0.0), Make)

    def test_few_cursors_wait_for_other_cursors(self):
        production = Production(random=True, kept=True)
        for start in range(0, 1000, 100):
            self.make(production, WantedElements(start, start + 100), 1)
        assert len(production.cursors) == IDLE
        assert len(production.retired) == 10 - IDLE
        assert len(production.take_retired()) == 10 - IDLE
        assert len(production.take_retired(include_idle=True)) == IDLE
        assert production.cursors == production.take_retired(include_idle=True) == []

    def test_a_busy_cursor_is_let_go_when_it_is_idle(self):
        production = Production(random=False)
        action = production.decide(WantedElements(0, 10), 0.0)
        assert isinstance(action, Make)
        assert production.take_retired(include_idle=True) == []
        production.add_block(action.cursor, 3, 3, "item")
        assert production.take_retired(include_idle=True) == [action.cursor]

    def test_the_end_is_found_once(self):
        production = Production(random=False)
        self.make(production, WantedElements(0, 10), 7)
        action = production.decide(WantedElements(7, 10), 0.0)
        assert isinstance(action, Make)
        production.record_end(action.cursor)
        assert production.length == 7
        assert production.decide(WantedElements(7, 10), 0.0) == End()
        assert production.decide(WantedElements(90, 99), 0.0) == End()
        assert isinstance(production.decide(WantedElements(6, 10), 0.0), Serve)

    def test_a_tail_of_what_all_consumers_have_is_kept(self):
        production = Production(random=False)
        production.blocks.add(block(0, 1, TAIL))
        assert production.droppable() == []
        production.blocks.add(block(1, 2, 1))
        assert production.droppable() == [0]
        assert Production(random=False, kept=True, blocks=production.blocks).droppable() == []

    def test_consumers_wait_for_each_other_when_much_is_kept(self):
        production = Production(random=False, kept=True, pace=ConsumerPace(2))
        action = production.decide(WantedElements(0, 100, consumer=0), 0.0, 50)
        assert isinstance(action, Make)
        production.add_block(action.cursor, 10, 60, "item")
        ahead = WantedElements(10, 100, consumer=0)
        assert production.decide(ahead, 1.0, 50) == Wait()
        assert isinstance(production.decide(WantedElements(1, 100, consumer=1), 2.0, 50), Serve)
        assert production.decide(ahead, 3.0, 50) == Wait()
        assert production.decide(WantedElements(11, 100, consumer=1), 3.5, 50) == Wait()
        assert isinstance(production.decide(ahead, 4.0, 50), Make)

    def test_consumers_do_not_wait_for_a_consumer_that_never_comes(self):
        production = Production(random=False, kept=True, pace=ConsumerPace(2))
        production.blocks.add(block(0, 10, 60))
        ahead = WantedElements(10, 100, consumer=0)
        assert production.decide(ahead, 10.0, 50) == Wait()
        assert isinstance(production.decide(ahead, 11.0 + timing.PACE, 50), Make)
        assert production.pace is not None
        assert production.pace.floor == 10


def test_any_order_of_asking_gives_every_element():
    """With cursors, marks and few kept blocks: every fetch returns the right elements."""
    for seed in range(30):
        rng = random.Random(seed)
        length = rng.randrange(1, 120)
        production = Production(rng.random() < 0.3, rng.random() < 0.5, longest=length)
        for _ in range(60):
            start = rng.randrange(length + 5)
            ask(production, rng, start, start + rng.randrange(1, 30), length)
        assert not any(cursor.busy for cursor in production.cursors)


def ask(production: Production, rng: random.Random, start: int, stop: int, length: int) -> None:
    """Drives a production through one fetch; an element is its ordinal."""
    at = start
    while at < stop:
        action = production.decide(WantedElements(at, stop), 0.0)
        match action:
            case Serve(found):
                offset = at - found.first
                assert found.item[offset] == at
                at = found.stop
            case End():
                assert at >= length
                return
            case Make(cursor, most):
                assert cursor.at <= at
                assert most >= 1
                if cursor.at >= length:
                    production.record_end(cursor)
                    continue
                count = min(rng.randrange(1, 8), most, length - cursor.at)
                if not production.random:
                    production.marks.add(DecodedMark(cursor.at, cursor.at))
                items = list(range(cursor.at, cursor.at + count))
                made, _ = production.add_block(cursor, count, 1, items)
                if made.start <= at < made.stop:
                    at = made.stop
                while len(production.blocks) > 5:
                    production.blocks.drop(next(s for s in range(200) if production.blocks.find(s)))
            case Wait():
                raise AssertionError("nobody else is making anything")
