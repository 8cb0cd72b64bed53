"""Text: cleaned, split into words, looked up in a vocabulary, padded and bucketed."""

import collections
import re
import string

import tensorflow as tf

LINES = [
    "positive\tI really <br /> LOVED this film, it was great!",
    "negative\tNot good. Not good at all...",
    "positive\tWhat a wonderful, wonderful story",
    "negative\tBoring",
    "positive\tgreat cast; great music; great fun",
]
with open("reviews.tsv", "w") as file:
    file.write("label\ttext\n" + "\n".join(LINES) + "\n")

dataset = tf.data.TextLineDataset("reviews.tsv").skip(1)


def split_line(line):
    parts = tf.strings.split(line, "\t")
    return parts[1], parts[0]


def clean(text, label):
    text = tf.strings.lower(text)
    text = tf.strings.regex_replace(text, "<br />", " ")
    text = tf.strings.regex_replace(text, f"[{re.escape(string.punctuation)}]", "")
    return tf.strings.strip(text), tf.cast(tf.equal(label, "positive"), tf.int64)


pairs = dataset.map(split_line).map(clean)
for text, label in pairs:
    print(text.numpy().decode("utf-8"), label.numpy(), tf.strings.length(text).numpy())

counter = collections.Counter()
for text, _ in pairs:
    counter.update(tf.strings.split(text).numpy().tolist())
vocabulary = [word for word, _ in sorted(counter.items(), key=lambda item: (-item[1], item[0]))][:8]
print(vocabulary)

table = tf.lookup.StaticVocabularyTable(
    tf.lookup.KeyValueTensorInitializer(
        keys=tf.constant(vocabulary), values=tf.range(len(vocabulary), dtype=tf.int64)
    ),
    num_oov_buckets=3,
)


def encode(text, label):
    return table.lookup(tf.strings.split(text)), label


encoded = pairs.map(encode)
for ids, label in encoded:
    print(ids.numpy().tolist(), label.numpy())

for ids, labels in encoded.padded_batch(
    2, padded_shapes=([None], []), padding_values=(tf.constant(-1, tf.int64), None)
):
    print(ids.numpy().tolist(), labels.numpy())

buckets = encoded.bucket_by_sequence_length(
    element_length_func=lambda ids, label: tf.shape(ids)[0],
    bucket_boundaries=[4, 7],
    bucket_batch_sizes=[2, 2, 2],
)
for ids, labels in buckets:
    print(ids.shape.as_list(), labels.numpy())

characters = tf.data.Dataset.from_tensor_slices(["ab", "ä"]).map(
    lambda text: tf.strings.unicode_split(text, "UTF-8")
)
for row in characters:
    print(row.numpy())

words = tf.data.Dataset.from_tensor_slices([line.split("\t")[1] for line in LINES]).batch(3)
for batch in words.map(lambda batch: tf.strings.split(tf.strings.lower(batch))):
    print(batch.row_lengths().numpy(), batch.to_tensor().shape, batch[0, 0].numpy())

filtered = pairs.filter(lambda text, label: tf.strings.regex_full_match(text, ".*great.*"))
print([label.numpy() for _, label in filtered])
hashed = pairs.map(lambda text, label: tf.strings.to_hash_bucket_fast(text, 1000))
print([int(bucket) for bucket in hashed])
for text, label in pairs.take(1):
    tf.print("first:", text, label, output_stream="file://printed.txt")
with open("printed.txt") as file:
    print(file.read())
