"""A CSV file: columns as features, a cache, and noise as augmentation."""

import tensorflow as tf

COLUMNS = ["survived", "sex", "age", "fare", "deck"]
ROWS = [
    "0,male,22.0,7.25,unknown",
    "1,female,38.0,71.2833,C",
    '1,female,26.0,7.925,"E, F"',
    "1,female,,53.1,C",
    "0,male,28.0,8.4583,unknown",
    "0,male,2.0,21.075,unknown",
]
with open("titanic.csv", "w") as file:
    file.write("\n".join([",".join(COLUMNS), *ROWS]) + "\n")

DEFAULTS = [tf.constant([], tf.int64), "", -1.0, [0.0], ["none"]]


def parse_line(line):
    values = tf.io.decode_csv(line, DEFAULTS)
    features = dict(zip(COLUMNS, values, strict=True))
    return features, features.pop("survived")


lines = tf.data.TextLineDataset("titanic.csv").skip(1)
parsed = lines.map(parse_line).cache()
for features, label in parsed:
    print(label.numpy(), {name: features[name].numpy() for name in sorted(features)})

sexes = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(["male", "female"], [0, 1]), default_value=-1
)


def to_vector(features, label):
    age = tf.where(features["age"] < 0, 30.0, features["age"])
    sex = tf.one_hot(sexes.lookup(features["sex"]), 2)
    numbers = tf.stack([age / 80.0, tf.math.log1p(features["fare"])])
    deck = tf.strings.to_hash_bucket_fast(features["deck"], 5)
    return tf.concat([numbers, sex, [tf.cast(deck, tf.float32)]], axis=0), label


vectors = parsed.map(to_vector)
for vector, label in vectors:
    print([round(float(v), 4) for v in vector], int(label))


def add_noise(vector, label):
    noise = tf.random.normal(tf.shape(vector), stddev=0.01)
    return vector + noise, label


noisy = vectors.map(add_noise, num_parallel_calls=2).shuffle(6).repeat(2).batch(4)
total = 0
for batch, labels in noisy:
    print(batch.shape, labels.dtype)
    total += int(tf.reduce_sum(labels))
print(total)
clean = {tuple(vector.numpy()) for vector, _ in vectors}
first = next(iter(noisy.unbatch()))[0]
print(tuple(first.numpy()) in clean, first.shape, tf.rank(first).numpy())

named = tf.data.experimental.make_csv_dataset(
    "titanic.csv", batch_size=3, label_name="survived", num_epochs=1, shuffle=False
)
for features, labels in named:
    print(labels.numpy(), features["sex"].numpy().tolist(), features["age"].dtype)
raw = tf.data.experimental.CsvDataset(
    "titanic.csv", [tf.int32, tf.float32], header=True, select_cols=[0, 3]
)
print([(int(a), round(float(b), 2)) for a, b in raw])
unique = parsed.map(lambda features, label: features["deck"]).unique()
print([deck.numpy() for deck in unique])
parsed.map(lambda features, label: label).save("saved")
print([int(label) for label in tf.data.Dataset.load("saved")])
for position, (_, label) in parsed.enumerate().skip(4):
    print(position.numpy(), label.numpy())
