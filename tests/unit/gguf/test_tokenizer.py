"""The tokenizer built from metadata against the one that the metadata came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType as Type
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.header import read_header
from glm5_vllm.gguf.huggingface.tokenizer import GLM4_PATTERN, tokenizer_config, tokenizer_json
from glm5_vllm.gguf.huggingface.vocabulary import read_vocabulary
from tests.support.raw_gguf import Array, RawGGUF
from tests.support.tiny_tokenizer import CONTROL, NORMAL, SPECIAL, UNUSED, USER_DEFINED, VISIBLE

TEXTS = [
    "Hello world, it's 12345 o'clock; they'LL say 1,234,567.89!",
    "  leading and   inner   spaces  ",
    "line\n\n\nbreaks\r\n\ttabs \n and trailing \n",
    "你好，世界！我们在2025年12月31日见面。日本語のテキスト 한국어",
    "emoji 😀👩‍👩‍👧‍👦🇩🇪 and é é ǅ",
    "def f(x):\n    return x**2  # comment\n\n\n    y = [1,22,333,4444]",
    "",
    "<|user|>hi<|assistant|><think>hm</think>done<|endoftext|>",
]


@pytest.fixture(scope="module")
def original() -> Tokenizer:
    """A byte-level BPE trained with GLM's way of cutting text and GLM's special tokens."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(GLM4_PATTERN), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in VISIBLE])
    return tokenizer


@pytest.fixture
def exported(original: Tokenizer, raw: RawGGUF) -> RawGGUF:
    """The tokenizer as a GGUF's metadata, padded like a model's vocabulary."""
    by_id = {i: token for token, i in original.get_vocab().items()}
    tokens = [by_id[i] for i in range(len(by_id))]
    kinds = [CONTROL if t in SPECIAL else USER_DEFINED if t in VISIBLE else NORMAL for t in tokens]
    merges = [" ".join(merge) for merge in json.loads(original.to_str())["model"]["merges"]]
    put(raw, "tokens", Type.STRING, [*tokens, "[PAD0]", "[PAD1]"])
    put(raw, "token_type", Type.INT32, [*kinds, UNUSED, UNUSED])
    put(raw, "merges", Type.STRING, merges)
    raw.set("tokenizer.ggml.eos_token_id", original.token_to_id("<|endoftext|>"))
    raw.set("tokenizer.ggml.eot_token_id", original.token_to_id("<|user|>"))
    return raw


def put(raw: RawGGUF, key: str, element: Type, values: list[Any]) -> None:
    raw.metadata[f"tokenizer.ggml.{key}"] = (Type.ARRAY, Array(element, values))


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_round_trip(text: str, original: Tokenizer, exported: RawGGUF, tmp_path: Path) -> None:
    """Text is cut and joined exactly as by the original: digits, spaces, line breaks, CJK, emoji, special tokens."""
    vocabulary = read_vocabulary(read_header(exported.write(tmp_path / "m.gguf")))
    built = Tokenizer.from_str(json.dumps(tokenizer_json(vocabulary)))
    encoding = original.encode(text)

    assert encoding.ids == built.encode(text).ids
    assert encoding.offsets == built.encode(text).offsets
    assert text == built.decode(encoding.ids, skip_special_tokens=False)
    assert original.decode(encoding.ids) == built.decode(encoding.ids)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("12345678", ["123", "456", "78"]),
        ("it's", ["it", "'s"]),
        ("a  b\n\n c", ["a", " ", " b", "\n\n", " c"]),
        ("x=1;", ["x", "=", "1", ";"]),
        ("你好,世界", ["你好", ",世界"]),
        (" 😀!\n", [" 😀!\n"]),
    ],
)
def test_pattern(text: str, pieces: list[str]) -> None:
    """Digits go by three, a blank goes with the word after it, line breaks end punctuation."""
    split = pre_tokenizers.Split(Regex(GLM4_PATTERN), "isolated")

    assert pieces == [piece for piece, _ in split.pre_tokenize_str(text)]


def test_files_for_transformers(exported: RawGGUF, tmp_path: Path) -> None:
    """transformers loads the files: end, padding and chat template are the model's, unused tokens are none."""
    from transformers import AutoTokenizer

    vocabulary = read_vocabulary(read_header(exported.write(tmp_path / "m.gguf")))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(vocabulary)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(vocabulary, 4096)))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "hi"}]

    assert (
        tokenizer.eos_token,
        tokenizer.pad_token,
        tokenizer.model_max_length,
    ) == ("<|endoftext|>", "<|endoftext|>", 4096)
    assert len(vocabulary.tokens) - 2 == len(tokenizer)
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "[gMASK]<sop><|user|>hi<|assistant|></think>"
    )
    ids = tokenizer.encode("<think>x</think><|user|>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>x</think>"


def test_stop_ids(exported: RawGGUF, original: Tokenizer, tmp_path: Path) -> None:
    """Generation ends at the file's end tokens and at those that open another turn, each once, the first first."""
    vocabulary = read_vocabulary(read_header(exported.write(tmp_path / "m.gguf")))

    expected = [original.token_to_id(token) for token in ("<|endoftext|>", "<|user|>", "<|observation|>")]
    assert expected == list(vocabulary.stop_ids)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda raw: raw.set("tokenizer.ggml.model", "llama"), "model: llama; expected gpt2, byte-level BPE"),
        (
            lambda raw: raw.metadata.update({"tokenizer.ggml.add_bos_token": (Type.BOOL, True)}),
            "add_bos_token: True; expected false: GLM's chat template writes its own prefix",
        ),
        (
            lambda raw: put(raw, "tokens", Type.STRING, ["a", "a", "b"]),
            "tokens: 1 doubled; expected each token once",
        ),
        (
            lambda raw: put(raw, "token_type", Type.INT32, [1, 2]),
            "token_type: 2 values; expected a type for each of 320 tokens",
        ),
        (
            lambda raw: put(raw, "merges", Type.STRING, ["a zz"]),
            "merges: 'a zz'; expected two tokens that join to a third",
        ),
        (lambda raw: raw.set("tokenizer.ggml.eos_token_id", 320), "eos_token_id: 320; expected an id below 320"),
        (
            lambda raw: raw.metadata.pop("tokenizer.ggml.eos_token_id"),
            "eos_token_id: missing; expected the id of a token",
        ),
        (lambda raw: raw.set("tokenizer.ggml.pre", "gpt-2"), "pre: gpt-2; expected glm4 or chatglm-bpe"),
    ],
    ids=["model", "bos", "doubled", "kinds", "merge", "eos-range", "no-eos", "pre"],
)  # fmt: skip
def test_refused(change: Any, expected: str, raw: RawGGUF, tmp_path: Path) -> None:
    """A vocabulary that is not GLM's, or contradicts itself, is refused by the key at fault."""
    change(raw)
    header = read_header(raw.write(tmp_path / "m.gguf"))

    with pytest.raises(GGUFError) as refused:
        tokenizer_json(read_vocabulary(header))
    assert str(refused.value).startswith(
        f"metadata key tokenizer.ggml.{expected}. Give the model's Hugging Face "
    )
