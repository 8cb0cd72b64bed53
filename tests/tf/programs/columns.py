"""CSV files: make_csv_dataset and decode_csv, features in dicts, categories, buckets, crosses."""

import tensorflow as tf

HEADER = "age,job,balance,date,target"
ROWS = [
    "34,nurse,1200.5,2021-03-04,yes",
    "51,teacher,-20,2020-12-31,no",
    ",nurse,300,2021-01-15,no",
    "29,pilot,5400.25,2019-07-01,yes",
    "62,,80,2021-11-30,no",
]
for part in range(2):
    with open(f"bank-{part}.csv", "w") as file:
        file.write("\n".join([HEADER, *ROWS[part * 3 : part * 3 + 3]]) + "\n")

dataset = tf.data.experimental.make_csv_dataset(
    "bank-*.csv",
    batch_size=2,
    label_name="target",
    column_defaults=[-1, "none", 0.0, "", "no"],
    num_epochs=1,
    shuffle=False,
)
for features, label in dataset.take(1):
    for key in features:
        print(key, features[key].numpy())
    print(label.numpy())

JOBS = ["nurse", "teacher", "pilot"]
job_table = tf.lookup.StaticVocabularyTable(
    tf.lookup.KeyValueTensorInitializer(JOBS, tf.range(len(JOBS), dtype=tf.int64)), 2
)
BOUNDARIES = tf.constant([30.0, 40.0, 60.0])


def parse(line):
    fields = tf.io.decode_csv(line, record_defaults=[[-1], ["none"], [0.0], [""], ["no"]])
    features = dict(zip(HEADER.split(","), fields, strict=True))
    label = tf.where(tf.equal(features.pop("target"), "yes"), 1, 0)
    return features, label


def preprocess(features, label):
    date = tf.strings.to_number(tf.strings.split(features["date"], "-"), tf.int32)
    age = tf.cast(features["age"], tf.float32)
    bucket = tf.searchsorted(BOUNDARIES, tf.reshape(age, [-1]), side="right")[0]
    job = job_table.lookup(features["job"])
    crossed = tf.strings.join([features["job"], tf.strings.as_string(bucket)], separator="_x_")
    month = tf.one_hot(date[1] - 1, 12)
    numbers = tf.stack(
        [age, tf.sign(features["balance"]) * tf.math.log1p(abs(features["balance"]))]
    )
    return {
        "numbers": numbers,
        "job": tf.cast(job, tf.int32),
        "cross": tf.strings.to_hash_bucket_fast(crossed, 100),
        "month": tf.argmax(month),
        "known": tf.logical_and(tf.greater_equal(age, 0.0), tf.not_equal(features["job"], "none")),
    }, label


lines = tf.data.Dataset.list_files("bank-*.csv", shuffle=False).interleave(
    lambda path: tf.data.TextLineDataset(path).skip(1), cycle_length=1
)
parsed = lines.map(parse)
ready = parsed.map(preprocess)
for features, label in ready:
    print({key: features[key].numpy().tolist() for key in sorted(features)}, label.numpy())

good = ready.filter(lambda features, label: features["known"])
print(good.reduce(0, lambda count, _: count + 1).numpy())
batch, labels = next(iter(ready.batch(5)))
print(batch["numbers"].shape, labels.numpy(), tf.reduce_mean(tf.cast(labels, tf.float32)).numpy())
mean = tf.math.reduce_mean(batch["numbers"], axis=0)
deviation = tf.math.reduce_std(batch["numbers"], axis=0)
scaled = ready.map(lambda features, label: ((features["numbers"] - mean) / deviation, label))
print([[round(float(one), 3) for one in row] for row, _ in scaled])
unique, index, count = tf.unique_with_counts(batch["job"])
print(unique.numpy(), index.numpy(), count.numpy())
slices = tf.data.Dataset.from_tensor_slices((dict(batch), labels))
print(slices.element_spec[0]["numbers"], len(slices))
for features, label in slices.shuffle(10, seed=1).batch(2).take(1):
    print(sorted(features), features["job"].dtype, label.shape)
weights = {0: 0.5, 1: 2.0}
weighted = ready.map(
    lambda features, label: (features["job"], label, tf.gather([weights[0], weights[1]], label))
)
print([(int(job), int(label), float(weight)) for job, label, weight in weighted])
