"""Text from a folder for each class: names of files, standardized words, a vocabulary, n-grams."""

import os
import re
import string

import tensorflow as tf

TEXTS = {
    "neg": ["Bad, bad film.", "I slept -- dull!\nVery dull.", "Awful cast"],
    "pos": ["Great film!", "Über great; loved it", "A fun, FUN night<br />out"],
}
for name, texts in TEXTS.items():
    os.makedirs(f"reviews/{name}")
    for number, text in enumerate(texts):
        with open(f"reviews/{name}/{number}.txt", "w", encoding="utf-8") as file:
            file.write(text)

files = tf.data.Dataset.list_files("reviews/*/*.txt", shuffle=False)
print(len(files), tf.data.experimental.cardinality(files).numpy())
class_names = tf.constant(sorted(TEXTS))


def read(path):
    folder = tf.strings.split(path, os.sep)[-2]
    label = tf.argmax(tf.cast(folder == class_names, tf.int32))
    return tf.io.read_file(path), label


def standardize(text):
    lowercase = tf.strings.lower(text, encoding="utf-8")
    no_tags = tf.strings.regex_replace(lowercase, "<[^>]+>", " ")
    return tf.strings.regex_replace(no_tags, f"[{re.escape(string.punctuation)}]", "")


raw = files.map(read, num_parallel_calls=tf.data.AUTOTUNE)
clean = raw.map(lambda text, label: (standardize(text), label)).cache()
for text, label in clean:
    print(text.numpy(), label.numpy())

words = clean.map(lambda text, label: tf.strings.split(text)).unbatch()
counts = {}
for word in words.as_numpy_iterator():
    counts[word] = counts.get(word, 0) + 1
vocabulary = sorted(counts, key=lambda word: (-counts[word], word))[:10]
with open("vocabulary.txt", "wb") as file:
    file.write(b"\n".join(vocabulary) + b"\n")

initializer = tf.lookup.TextFileInitializer(
    "vocabulary.txt",
    key_dtype=tf.string,
    key_index=tf.lookup.TextFileIndex.WHOLE_LINE,
    value_dtype=tf.int64,
    value_index=tf.lookup.TextFileIndex.LINE_NUMBER,
)
table = tf.lookup.StaticHashTable(initializer, default_value=-1)
MAX_LENGTH = 5


def vectorize(texts, labels):
    tokens = tf.strings.split(texts)
    ids = table.lookup(tokens) + 2
    padded = ids.to_tensor(default_value=0, shape=[None, MAX_LENGTH])
    mask = tf.sequence_mask(tf.minimum(ids.row_lengths(), MAX_LENGTH), MAX_LENGTH)
    return {"ids": padded, "mask": mask}, labels


batches = clean.batch(4).map(vectorize).prefetch(tf.data.AUTOTUNE)
for features, labels in batches:
    print(features["ids"].numpy().tolist(), labels.numpy().tolist())
    print(tf.reduce_sum(tf.cast(features["mask"], tf.int32), axis=1).numpy())
print(batches.element_spec[1])


def multi_hot(text, label):
    ids = table.lookup(tf.strings.split(text))
    known = tf.boolean_mask(ids, ids >= 0)
    return tf.reduce_max(tf.one_hot(known, len(vocabulary)), axis=0), label


for vector, label in clean.map(multi_hot):
    print(vector.numpy().astype(int).tolist(), label.numpy())

bigrams = clean.map(lambda text, label: tf.strings.ngrams(tf.strings.split(text), 2))
for grams in bigrams.take(2):
    print([gram.decode() for gram in grams.numpy()])

train, held_out = clean.take(4), clean.skip(4)
print([int(label) for _, label in train], [int(label) for _, label in held_out])
characters = clean.map(lambda text, label: tf.strings.unicode_split(text, "UTF-8")[:4])
print(next(iter(characters.skip(4))).numpy().tolist())
weights = clean.map(lambda text, label: tf.cond(label > 0, lambda: 1.0, lambda: 0.5))
print(sum(weight.numpy() for weight in weights))
