"""Ragged batches: sentences of different lengths from tf.train.Example, and arithmetic on rows."""

import tensorflow as tf

SENTENCES = [["the", "cat"], ["a", "very", "big", "dog"], [], ["stop"]]
SCORES = [[0.5, 1.5], [1.0, 2.0, 3.0, 4.0], [], [7.0]]


def to_example(words, scores):
    return tf.train.Example(
        features=tf.train.Features(
            feature={
                "words": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[word.encode() for word in words])
                ),
                "scores": tf.train.Feature(float_list=tf.train.FloatList(value=scores)),
                "length": tf.train.Feature(int64_list=tf.train.Int64List(value=[len(words)])),
            }
        )
    )


with tf.io.TFRecordWriter("sentences.tfrecord") as writer:
    for words, scores in zip(SENTENCES, SCORES, strict=True):
        writer.write(to_example(words, scores).SerializeToString())

FEATURES = {
    "words": tf.io.RaggedFeature(tf.string),
    "scores": tf.io.RaggedFeature(tf.float32),
    "length": tf.io.FixedLenFeature([], tf.int64),
}
dataset = tf.data.TFRecordDataset(["sentences.tfrecord"]).batch(4)
dataset = dataset.map(lambda records: tf.io.parse_example(records, FEATURES))
for batch in dataset:
    print(batch["words"], batch["scores"].shape)
    print(batch["words"].to_list(), batch["length"].numpy())
    print(batch["scores"].to_tensor(default_value=-1.0).numpy().tolist())
    doubled = batch["scores"] * 2.0 + 1.0
    print(doubled.to_list(), tf.reduce_sum(doubled, axis=1).numpy())
    print(tf.reduce_max(batch["words"].row_lengths()).numpy(), batch["words"].nrows().numpy())
    lengths = tf.strings.length(batch["words"])
    print(lengths.to_list(), tf.reduce_mean(tf.cast(lengths, tf.float32)).numpy())
    starts = tf.strings.substr(batch["words"], 0, 1)
    print(starts, starts.flat_values.numpy())
    marked = tf.concat([tf.fill([batch["words"].nrows(), 1], "[CLS]"), batch["words"]], axis=1)
    print(marked.to_list())
    print(batch["words"][:, :2].to_list(), batch["words"][1].numpy().tolist())
    long = tf.boolean_mask(batch["length"], batch["length"] > 1)
    print(long.numpy(), tf.ragged.boolean_mask(batch["scores"], batch["scores"] > 1.0).to_list())

sparse = tf.io.parse_single_example(
    to_example(SENTENCES[1], SCORES[1]).SerializeToString(),
    {"words": tf.io.VarLenFeature(tf.string)},
)
print(tf.sparse.to_dense(sparse["words"], default_value="").numpy())

rows = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1, 2, 3], [4], [], [5, 6]]))
print(rows.element_spec)
for batch in rows.ragged_batch(3):
    print(batch, batch.row_splits.numpy())
for batch in rows.apply(tf.data.experimental.dense_to_ragged_batch(2, drop_remainder=True)):
    print(batch.to_tensor().numpy().tolist())
variable = tf.data.Dataset.range(1, 5).map(lambda n: tf.fill([n], n))
for batch in variable.ragged_batch(2):
    print(batch.to_list(), tf.reduce_sum(batch, 1).numpy())
for batch in variable.padded_batch(2, padding_values=tf.constant(-1, tf.int64)):
    print(batch.numpy().tolist())
bucketed = variable.bucket_by_sequence_length(
    element_length_func=lambda row: tf.shape(row)[0],
    bucket_boundaries=[3],
    bucket_batch_sizes=[2, 2],
)
print([batch.shape.as_list() for batch in bucketed])
tokens = tf.data.Dataset.from_tensor_slices(["a b c", "d", "e f"]).batch(3).map(tf.strings.split)
for row in tokens.unbatch():
    print(row.numpy().tolist())
table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "e"], [1, 2]), 0)
print(next(iter(tokens.map(lambda words: table.lookup(words) * 10))))
stacked = tf.ragged.stack([tf.constant([1, 2]), tf.constant([3])])
print(stacked, tf.ragged.range([1, 3]).to_list(), (stacked == 3).to_list())
example = tf.train.Example.FromString(to_example(["x"], [1.0]).SerializeToString())
print(example.features.feature["words"].bytes_list.value[0], example.features.feature["scores"])
