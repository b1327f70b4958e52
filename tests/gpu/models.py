"""The models whose speed tests/gpu measures, and how many operations they are."""

CONTEXT, VOCAB = 1024, 50257
MODELS = {
    "124M": {"layers": 12, "heads": 12, "width": 768},
    "1558M": {"layers": 48, "heads": 25, "width": 1600},
}
PEAK_TFLOPS = {"H100": 989, "H200": 989, "GH200": 989, "A100": 312}  # dense bf16, by the vendor's data sheets


def job_keys(model):
    """What a job says of it."""
    return {**{f"model.{key}": value for key, value in model.items()}, "model.context": CONTEXT, "model.vocab": VOCAB}


def padded_vocab(multiple=128):
    return (VOCAB + multiple - 1) // multiple * multiple


def parameters(model):
    """Without the position embeddings; the head is the token embedding."""
    width = model["width"]
    return VOCAB * width + model["layers"] * (12 * width * width + 13 * width) + 2 * width


def flops_per_token(model):
    """Of forward and backward, as the PaLM paper counts them (Chowdhery et al. 2022, appendix B): 6N + 12·L·C·T. What is
    recomputed does not count, nor does padding, and attention is not halved for being causal."""
    return 6 * parameters(model) + 12 * model["layers"] * model["width"] * CONTEXT


def products(model, micro, recompute=False):
    """(name, m, n, k, calls) of every product of weights in a micro-batch, forward and backward: m rows, n columns, k summed.
    recompute: of all blocks but the last, whose activations are still there, the forward's run twice, but for the mlp's second."""
    rows, width, layers = micro * CONTEXT, model["width"], model["layers"]
    linears = [("c_attn", width, 3 * width, layers), ("attn.c_proj", width, width, layers), ("c_fc", width, 4 * width, layers),
               ("mlp.c_proj", 4 * width, width, layers), ("head", width, padded_vocab(), 1)]
    for name, inner, outer, calls in linears:
        again = layers - 1 if recompute and name in ("c_attn", "attn.c_proj", "c_fc") else 0
        yield name, rows, outer, inner, calls + again
        yield f"{name}, input's gradient", rows, inner, outer, calls
        yield f"{name}, weight's gradient", inner, outer, rows, calls
