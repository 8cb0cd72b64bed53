import collections
import io
import sys
import warnings

import numpy as np
import pytest

import penstock as tf
from penstock.element.dtypes import as_dtype
from penstock.element.ragged import Ragged
from penstock.element.spec import RaggedTensorSpec, TensorSpec
from penstock.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError

VECTOR = TensorSpec([None], np.float32)
NUMBER = TensorSpec([], np.int32)


def same(value, expected, dtype):
    """A NumPy value with exactly this dtype."""
    assert isinstance(value, np.ndarray) == (np.ndim(expected) > 0)
    assert value.dtype == dtype
    np.testing.assert_array_equal(value, expected)


def capture_print(*inputs, **options):
    stream = io.StringIO()
    tf.print(*inputs, output_stream=stream, **options)
    return stream.getvalue()


class TestFunction:
    def test_without_a_signature_it_is_the_function(self):
        def train(x):
            return x

        assert tf.function(train) is train
        assert tf.function()(train) is train
        ignored = {"jit_compile": True, "reduce_retracing": True, "autograph": False}
        assert tf.function(train, **ignored, experimental_relax_shapes=True) is train

    def test_a_signature_keeps_name_and_docstring(self):
        @tf.function(input_signature=[VECTOR])
        def train(x):
            """Trains."""
            return x

        assert (train.__name__, train.__doc__) == ("train", "Trains.")
        assert train.input_signature == (VECTOR,)
        assert train.python_function.__name__ == "train"

    def test_python_values_take_the_dtype_of_the_spec(self):
        double = tf.function(lambda x: x * 2, input_signature=[VECTOR])
        same(double([1, 2]), [2, 4], np.float32)
        same(double((1, 2)), [2, 4], np.float32)
        same(tf.function(lambda x: x, input_signature=(TensorSpec((), np.int64),))(3), 3, np.int64)
        text = tf.function(lambda x: x, input_signature=[TensorSpec((), "string")])
        assert text("a") == text(b"a") == b"a"

    def test_structures_are_checked_leaf_by_leaf(self):
        spec = {"a": NUMBER, "b": (VECTOR, NUMBER)}
        identity = tf.function(lambda x: x, input_signature=[spec])
        result = identity({"a": 1, "b": ([1.0], np.int32(2))})
        same(result["b"][0], [1.0], np.float32)
        with pytest.raises(InvalidTypeError, match=r"<lambda>: x must be .*'a'.* got \{'c'"):
            identity({"c": 1})
        with pytest.raises(InvalidTypeError, match=r"must be TensorSpec\(shape=\(None,\)"):
            identity({"a": 1, "b": (np.float32(1), 2)})

    def test_other_specs_say_themselves_what_fits(self):
        length = tf.function(len, input_signature=[RaggedTensorSpec([None, None], np.int64)])
        assert length(Ragged.from_rows([[1], [2, 3]])) == 2
        with pytest.raises(InvalidTypeError, match=r"must be RaggedTensorSpec.*got TensorSpec"):
            length(np.arange(3))

    def test_keywords_defaults_and_what_the_signature_leaves_out(self):
        @tf.function(input_signature=[NUMBER, NUMBER])
        def add(x, y=2, *, scale=1, **rest):
            return x + y, scale, rest

        assert add(y=5, x=1) == (6, 1, {})
        sum_, scale, rest = add(1, scale=2.5, more="m")
        assert (sum_, scale, rest) == (3, 2.5, {"more": "m"})
        assert sum_.dtype == np.int32

    def test_positional_rest_is_covered_by_the_signature(self):
        @tf.function(input_signature=[NUMBER, NUMBER])
        def add(*numbers):
            return sum(numbers)

        assert add(1, 2) == 3
        with pytest.raises(InvalidTypeError, match="add: numbers: 1.5"):
            add(1, 1.5)

    def test_methods(self):
        class Model:
            weight = 3

            @tf.function(input_signature=[NUMBER])
            def train(self, x):
                return self.weight * x

        assert Model().train(2) == 6
        assert Model.train.__name__ == "train"
        with pytest.raises(InvalidTypeError, match="train: x"):
            Model().train(1.5)

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (
                np.float32([[1]]),
                r"train: x must be TensorSpec\(shape=\(None,\), dtype=tf.float32, ",
            ),
            (np.float64([1]), r"got TensorSpec\(shape=\(1,\), dtype=tf.float64, name=None\)"),
            (np.float64(1), r"got TensorSpec\(shape=\(\), dtype=tf.float64, name=None\)"),
            (["a"], r"train: x: \['a'\] \(list\) cannot become float32"),
            (None, r"got NoneTensorSpec\(\)"),
            (object, r"got <class 'object'> \(type\)"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, value, message):
        def train(x):
            raise AssertionError

        with pytest.raises(InvalidTypeError, match=message):
            tf.function(train, input_signature=[VECTOR])(value)

    def test_the_number_of_arguments(self):
        def train(x, y=1):
            raise AssertionError

        with pytest.raises(InvalidTypeError, match="^train: missing a required argument: 'x'$"):
            tf.function(train, input_signature=[NUMBER])()
        with pytest.raises(
            InvalidTypeError, match="^train: input_signature describes 1 arguments, got 2$"
        ):
            tf.function(train, input_signature=[NUMBER])(1, 2)
        with pytest.raises(InvalidTypeError, match="describes 3 arguments, got 1$"):
            tf.function(train, input_signature=[NUMBER] * 3)(1)

    def test_wrong_use_of_the_decorator(self):
        with pytest.raises(InvalidTypeError, match=r"^function: needs something to call, got 5 "):
            tf.function(5)
        with pytest.raises(InvalidTypeError, match="^function: there is no argument signature$"):
            tf.function(signature=[])
        with pytest.raises(InvalidTypeError, match="must be a list or tuple of specs, got Tensor"):
            tf.function(len, input_signature=NUMBER)
        with pytest.raises(InvalidTypeError, match="must hold specs such as TensorSpec, got 3"):
            tf.function(len, input_signature=[3])


class TestConstant:
    @pytest.mark.parametrize(
        ("value", "dtype", "expected", "result"),
        [
            (1, None, 1, np.int32),
            (2**40, None, 2**40, np.int64),
            (0.5, None, 0.5, np.float32),
            (True, None, True, np.bool_),
            ([1, 2], None, [1, 2], np.int32),
            ([1, 2.5], None, [1, 2.5], np.float32),
            (np.arange(2), None, [0, 1], np.int64),
            (1, np.int64, 1, np.int64),
            (1, "float64", 1, np.float64),
            (0.1, np.float64, 0.1, np.float64),
            ([0.1], float, np.float32([0.1]), np.float32),
            (1, np.complex64, 1, np.complex64),
            ([], np.int64, [], np.int64),
            (np.float64([1.9, -1.9]), np.int32, [1, -1], np.int32),
            (np.float64([1.9]), np.bool_, [True], np.bool_),
        ],
    )
    def test_dtypes(self, value, dtype, expected, result):
        same(tf.constant(value, dtype), expected, result)

    def test_strings_are_bytes(self):
        assert tf.constant("é") == "é".encode()
        assert tf.constant(["a", b"b"]).tolist() == [b"a", b"b"]
        assert tf.constant([], "string").dtype == object
        assert tf.constant("a", shape=[2]).tolist() == [b"a", b"a"]
        assert tf.constant("a\0", shape=[2]).tolist() == [b"a\0", b"a\0"]

    def test_shape(self):
        same(tf.constant([1, 2, 3, 4], shape=(2, 2)), [[1, 2], [3, 4]], np.int32)
        same(tf.constant(0.5, shape=[2]), [0.5, 0.5], np.float32)
        same(tf.constant([5], shape=3), [5, 5, 5], np.int32)
        same(tf.constant([5], shape=[]), 5, np.int32)
        with pytest.raises(
            InvalidTypeError, match=r"constant: 3 values cannot fill the shape \(2,"
        ):
            tf.constant([1, 2, 3], shape=[2, 2])

    def test_it_does_not_follow_its_source(self):
        source = np.zeros(2)
        value = tf.constant(source)
        source[0] = 1
        assert value.tolist() == [0, 0]

    @pytest.mark.parametrize(
        ("value", "dtype"),
        [(1.5, np.int32), (True, np.int32), (1, np.bool_), ("a", np.int32), (1, "string")],
    )
    def test_a_literal_keeps_its_kind(self, value, dtype):
        name = as_dtype(dtype).name
        with pytest.raises(
            InvalidTypeError, match=rf"^constant: {value!r} \(\w+\) cannot become {name}$"
        ):
            tf.constant(value, dtype)

    def test_whole_numbers_up_to_the_largest(self):
        for value in (2**63, 2**64 - 1):
            for given in (value, [value], [[1], [value]]):
                constant = tf.constant(given, np.uint64)
                assert (constant.dtype, constant.tolist()) == (np.uint64, given)
        with pytest.raises(
            InvalidArgumentError, match=f"^constant: {2**64} does not fit into uint"
        ):
            tf.constant(2**64, np.uint64)
        with pytest.raises(InvalidArgumentError, match="differ in length"):
            tf.constant([[1], [2, 3]], np.uint64)

    def test_what_cannot_be_an_array(self):
        with pytest.raises(InvalidArgumentError, match="^constant: 300 does not fit into uint8$"):
            tf.constant(300, np.uint8)
        with pytest.raises(InvalidArgumentError, match=r"^constant: needs an array .* got None"):
            tf.constant(None)
        with pytest.raises(InvalidArgumentError, match="^constant: a value of type dict cannot be"):
            tf.constant({})
        with pytest.raises(InvalidTypeError, match="cannot become int32"):
            tf.constant(np.array(["a"]), np.int32)


class TestArrays:
    def test_cast(self):
        same(tf.cast([1.8, -1.8], np.int32), [1, -1], np.int32)
        same(tf.cast(3, "float32"), 3, np.float32)
        same(tf.cast([0.0, 0.5], np.bool_), [False, True], np.bool_)
        same(tf.cast(np.complex64(1 + 2j), np.float32), 1, np.float32)
        assert tf.cast(np.array([np.nan, 1e30]), np.int32).dtype == np.int32
        assert tf.cast("a", "string") == b"a"

    def test_cast_knows_no_strings(self):
        with pytest.raises(UnimplementedError, match="^cast: string cannot become float32$"):
            tf.cast("1", np.float32)
        with pytest.raises(UnimplementedError, match="^cast: int32 cannot become string$"):
            tf.cast(1, "string")

    @pytest.mark.parametrize(
        ("arguments", "expected", "dtype"),
        [
            ((3,), [0, 1, 2], np.int32),
            ((0,), [], np.int32),
            ((2, 5), [2, 3, 4], np.int32),
            ((5, 0, -2), [5, 3, 1], np.int32),
            ((np.int64(3),), [0, 1, 2], np.int64),
            ((2.5,), [0, 1, 2], np.float32),
            ((1, 2, 0.25), [1, 1.25, 1.5, 1.75], np.float32),
            ((3, None, 1, "float64"), [0, 1, 2], np.float64),
            ((3, None, 1, np.uint8), [0, 1, 2], np.uint8),
        ],
    )
    def test_range(self, arguments, expected, dtype):
        same(tf.range(*arguments), expected, dtype)

    def test_range_that_leads_nowhere(self):
        with pytest.raises(
            InvalidArgumentError, match="^range: steps of 1 do not lead from 5 to 0;"
        ):
            tf.range(5, 0)
        with pytest.raises(InvalidArgumentError, match="steps of 0 do not lead"):
            tf.range(0, 5, 0)
        with pytest.raises(InvalidArgumentError, match="do not lead from 0.0 to inf"):
            tf.range(float("inf"))

    def test_range_of_something_else(self):
        with pytest.raises(
            InvalidArgumentError, match=r"range: needs single numbers, got \[1, 2\]"
        ):
            tf.range([1, 2])
        with pytest.raises(
            InvalidArgumentError, match="dtype from int32, string, int32; pass dtype"
        ):
            tf.range("a")
        with pytest.raises(InvalidTypeError, match="range: dtype must be one of numbers, got bool"):
            tf.range(3, dtype=bool)
        with pytest.raises(InvalidTypeError, match=r"^range: 2.5 \(float\) cannot become int32$"):
            tf.range(2.5, dtype=np.int32)

    def test_zeros_and_ones(self):
        same(tf.zeros([2]), [0, 0], np.float32)
        same(tf.zeros((2, 1), np.int32), [[0], [0]], np.int32)
        same(tf.zeros(2, bool), [False, False], np.bool_)
        same(tf.ones([np.int32(1), 2]), [[1, 1]], np.float32)
        same(tf.ones(tf.shape([7, 8, 9]), np.int64), [1, 1, 1], np.int64)
        same(tf.ones([]), 1, np.float32)
        assert tf.zeros([2], "string").tolist() == [b"", b""]
        assert tf.zeros([], "string") == b""

    def test_shapes_that_are_none(self):
        with pytest.raises(
            InvalidTypeError, match=r"^zeros: shape must be ints, got \[1.5\] \(list\)$"
        ):
            tf.zeros([1.5])
        with pytest.raises(
            InvalidArgumentError, match=r"^ones: shape must not be negative, got \[-1"
        ):
            tf.ones([-1])
        with pytest.raises(InvalidTypeError, match="^ones: a string cannot be 1"):
            tf.ones([1], "string")

    def test_shape(self):
        same(tf.shape([[1, 2]]), [1, 2], np.int32)
        same(tf.shape(5), [], np.int32)
        same(tf.shape("a"), [], np.int32)
        same(tf.shape(np.zeros((0, 3)), out_type=np.int64), [0, 3], np.int64)

    def test_square(self):
        same(tf.square(3), 9, np.int32)
        same(tf.square([0.5]), [0.25], np.float32)
        same(tf.square(2**20), 0, np.int32)
        with pytest.raises(
            InvalidArgumentError, match="^square: needs numbers, got bool; use cast"
        ):
            tf.square(True)


class TestReduce:
    def test_sums_keep_the_dtype(self):
        same(tf.reduce_sum([1, 2, 3]), 6, np.int32)
        same(tf.reduce_sum(np.uint8([200, 100])), 44, np.uint8)
        same(tf.reduce_sum([0.5, 1]), 1.5, np.float32)
        same(tf.reduce_sum(5), 5, np.int32)
        same(tf.reduce_sum(np.zeros((0, 2))), 0, np.float64)

    def test_axes(self):
        matrix = [[1, 2], [3, 4]]
        same(tf.reduce_sum(matrix, axis=0), [4, 6], np.int32)
        same(tf.reduce_sum(matrix, -1, keepdims=True), [[3], [7]], np.int32)
        same(tf.reduce_sum(matrix, [0, 1]), 10, np.int32)
        same(tf.reduce_sum(matrix, np.int64(1)), [3, 7], np.int32)
        same(tf.reduce_sum(matrix, []), matrix, np.int32)
        same(tf.reduce_mean(matrix, []), matrix, np.int32)

    @pytest.mark.parametrize(
        ("values", "mean"),
        [([1, 2], 1), ([-1, -2], -1), ([1, 0, 1, 0], 0), ([7, 8], 7), (np.int8([100, 27]), 63)],
    )
    def test_the_mean_of_integers_is_cut_off(self, values, mean):
        same(tf.reduce_mean(values), mean, getattr(values, "dtype", np.int32))

    def test_means_keep_the_dtype(self):
        same(tf.reduce_mean([1.0, 2.0]), 1.5, np.float32)
        same(tf.reduce_mean(np.float64([[1, 2], [3, 4]]), axis=0), [2, 3], np.float64)
        same(tf.reduce_mean(np.full(5000, 100, np.float16)), 100, np.float16)
        same(tf.reduce_mean(np.full((4, 4), 200, np.uint8)), 200, np.uint8)
        same(tf.reduce_mean(np.full(3, -(2**31), np.int32)), -(2**31), np.int32)
        same(tf.reduce_mean(np.complex64([1j, 3j])), 2j, np.complex64)
        same(tf.reduce_mean(np.uint64([2**63, 2**63 - 1])), (2**64 - 1) // 2, np.uint64)

    def test_the_mean_of_nothing(self):
        assert np.isnan(tf.reduce_mean(np.zeros(0)))
        same(tf.reduce_mean(np.zeros(0, np.int32)), 0, np.int32)
        assert tf.reduce_mean(np.zeros((3, 0)), axis=0).shape == (0,)

    def test_wrong_axes_and_values(self):
        with pytest.raises(
            InvalidArgumentError, match="^reduce_sum: axis 2 does not fit an array of "
        ):
            tf.reduce_sum([1], axis=2)
        with pytest.raises(InvalidArgumentError, match=r"reduce_mean: axis \[0, 0\] does not fit"):
            tf.reduce_mean([1], axis=[0, 0])
        with pytest.raises(
            InvalidTypeError, match=r"^reduce_sum: axis must be ints, got 'a' \(str\)$"
        ):
            tf.reduce_sum([1], axis="a")
        with pytest.raises(InvalidArgumentError, match="^reduce_sum: needs numbers, got string; "):
            tf.reduce_sum("a")
        with pytest.raises(
            InvalidArgumentError, match="reduce_sum: needs an array or a number, got"
        ):
            tf.reduce_sum(Ragged.from_rows([[1]]), axis=0)

    def test_all_numbers_of_ragged_rows(self):
        ragged = Ragged.from_rows([[1.0], [2.0, 6.0]])[1:]
        assert tf.reduce_sum(ragged) == 8.0
        assert tf.reduce_mean(ragged) == 4.0


class TestPrint:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (np.int64([0, 1]), "[0 1]"),
            (np.zeros(0), "[]"),
            ((np.arange(2), np.zeros(0)), "([0 1], [])"),
            (np.arange(7), "[0 1 2 ... 4 5 6]"),
            (np.arange(6), "[0 1 2 3 4 5]"),
            (np.arange(4).reshape(2, 2), "[[0 1]\n [2 3]]"),
            (np.arange(4).reshape(2, 1, 2), "[[[0 1]]\n\n [[2 3]]]"),
            (np.arange(7).reshape(7, 1), "[[0]\n [1]\n [2]\n ...\n [4]\n [5]\n [6]]"),
            (np.float32([1, 0.5, 0.1, 1e10]), "[1 0.5 0.1 1e+10]"),
            (np.float32(1 / 3), "0.333333343"),
            (np.float64(1 / 3), "0.33333333333333331"),
            (np.float64(0.1), "0.1"),
            (np.float16(0.5), "0.5"),
            (np.array(0.1, np.float32), "0.1"),
            (np.float32([np.nan, np.inf, -np.inf]), "[nan inf -inf]"),
            (np.complex64(1 + 0.5j), "(1,0.5)"),
            (np.bool_(True), "1"),
            (np.uint8(200), "200"),
            (b"a", "a"),
            (b"\xff", "\\xff"),
            (np.array([b"a", b'b"\n'], object), '["a" "b\\"\\n"]'),
            ("plain", "plain"),
            (1.0, "1.0"),
            ([np.int32(1), 2.0, "s"], "[1, 2.0, 's']"),
            ({"b": np.int32(1), "a": (b"x",)}, "{'a': (\"x\",), 'b': 1}"),
            (collections.namedtuple("P", "x")(np.ones(2)), "P(x=[1 1])"),
            (Ragged.from_rows([[1], [2, 3]]), "[[1], [2, 3]]"),
            (Ragged.from_rows([[0.1, 2], []], np.float32), "[[0.100000, 2.000000], []]"),
            (Ragged.from_rows([[True], []], bool), "[[true], []]"),
            (Ragged.from_rows([[b"a", b"b"], [b"c"]]), "[['a', 'b'], ['c']]"),
            (Ragged.from_rows([range(9), [1]]), "[[0, 1, 2, ..., 6, 7, 8], [1]]"),
            (None, "None"),
        ],
    )
    def test_form(self, value, text):
        assert capture_print(value) == text + "\n"

    def test_separator_end_and_several_values(self):
        assert capture_print("a", np.int32(1), b"b", sep=", ", end=".") == 'a, 1, "b".'
        assert capture_print() == "\n"

    def test_summarize(self):
        assert capture_print(np.arange(5), summarize=1) == "[0 ... 4]\n"
        assert capture_print(np.arange(5), summarize=0) == "[...]\n"
        assert capture_print(np.arange(9), summarize=-1) == "[0 1 2 3 4 5 6 7 8]\n"

    def test_long_structures_stay_on_one_line(self):
        assert capture_print([np.int32(1000)] * 50) == f"[{', '.join(['1000'] * 50)}]\n"

    def test_streams(self, capsys, tmp_path):
        tf.print("error")
        tf.print("out", output_stream=sys.stdout)
        assert capsys.readouterr() == ("out\n", "error\n")
        path = tmp_path / "log.txt"
        tf.print("é", output_stream=f"file://{path}")
        tf.print(b"2", output_stream=f"file://{path}")
        assert path.read_text(encoding="utf-8") == "é\n2\n"

    def test_a_stream_that_is_none(self):
        with pytest.raises(
            InvalidArgumentError, match=r"^print: output_stream must be .* got \'log.txt\'$"
        ):
            tf.print("a", output_stream="log.txt")


def test_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tf.square(np.float32(1e38))
        tf.reduce_mean(np.zeros((0, 2)), axis=0)
        tf.reduce_sum(np.float32([3e38, 3e38]))
        tf.constant(np.complex64([1j]), np.float32)
