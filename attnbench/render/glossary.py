"""What each number of a report means, once, for every form of report."""

from attnbench.render.words import STATUS_WORDS, VERDICT_WORDS

METRIC_MEANINGS = {
    "latency": "Time of one call, the median of its samples; the band is the 95 % interval of that median. "
    "A result outside its error budget has no latency, and neither has a kernel that only ran in an interpreter.",
    "peak-memory": "Bytes held at the highest moment of one call, inputs and outputs included. "
    "What did not run is drawn hollow where it was predicted.",
    "operand-bytes": "What each operator reads and writes, each operand once: comparable across implementations. "
    "The dashed line is the compulsory part: every input once, every output once.",
    "requested-bytes": "What a kernel's own loads and stores ask for, re-reads included. Only kernels have it.",
    "error": "Largest absolute distance of the output to the float64 truth. "
    "The dotted line of the same colour is the error budget.",
}
TERMS = (
    ("Latency", "Median time of one call. The interval beside it holds the true median in 95 of 100 such measurements."),
    ("Doubt of a latency", "; ".join(f"{word.replace('_', ' ')}: {said}" for word, said in VERDICT_WORDS.items()) + "."),
    ("Peak memory", "Bytes held at the highest moment of one call. Above inputs: the same without inputs and weights."),
    ("Predicted peak", "The same from tensor lifetimes alone, before anything ran; how an out-of-memory case is known early."),
    ("Compulsory bytes", "Every input that can influence the output read once, every output written once: the least possible."),
    ("Operand bytes", "What each operator reads and writes, each operand once. Comparable across implementations."),
    ("Requested bytes", "What a kernel's own loads and stores ask for, re-reads included. Kernels only."),
    ("DRAM bytes", "What crossed the pins of the memory, from hardware counters. Never estimated from the other three."),
    ("Error", "Largest absolute distance of the output to the definition in float64."),
    (
        "Error budget",
        "How far a result may be from the truth: a small multiple of what the plain computation in the same dtype is, and "
        "never more than rounding can explain. Budget used: the larger share of the absolute and the relative rule.",
    ),
    ("To softmax", "Distance of another function to softmax attention on the same inputs: an approximation, not an error."),
    ("Growth", "Slope on log axes between the last two lengths: n^1 doubles when the length doubles, n^2 quadruples."),
    ("Lengths", "k is 1024: 4k is 4096 tokens. Bytes are binary: 1 KiB is 1024 bytes."),
    ("Status", "; ".join(f"{word}: {said}" for word, said in STATUS_WORDS.items()) + "."),
)
