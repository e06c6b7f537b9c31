"""Check a model against another from Python, without a target file.

python examples/two_models.py
"""

import torch
from transformers import AutoModelForCausalLM

import validator
from validator.content import find_model

CHECKPOINT = find_model("tiny-dense")

ref_model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
cand_model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.bfloat16)
# A wrong epsilon in one norm: the weights are the same, and so is nearly every logit.
cand_model.model.layers[1].input_layernorm.variance_epsilon = 1e-2

text = b"import numpy as np\n\n\ndef softmax(scores):\n    scores = scores - scores.max()\n    "
result = validator.check(
    reference=ref_model, candidate=cand_model, inputs={"input_ids": torch.tensor([list(text)])}
)
print(result)

first = result.first_divergence
print(f"\nfirst divergence: {first.module}" if first else "\nno divergence")
print(result.to_frame()[["module", "into", "check", "verdict"]].tail(3).to_string(index=False))
