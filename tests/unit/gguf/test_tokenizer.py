"""The tokenizer built from metadata against the one that the metadata came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType as Type
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from glm5_vllm.gguf.__main__ import main
from glm5_vllm.gguf.errors import GGUFError
from glm5_vllm.gguf.file.header import read_header
from glm5_vllm.gguf.huggingface.tokenizer import GLM4_PATTERN, tokenizer_config, tokenizer_json
from glm5_vllm.gguf.huggingface.vocabulary import read_vocabulary
from tests.support.raw_gguf import Array, RawGGUF
from tests.support.tiny_gguf import TinyModel
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


def item(raw: RawGGUF, key: str, index: int, value: Any) -> None:
    raw.metadata[f"tokenizer.ggml.{key}"][1].items[index] = value


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
            lambda raw: put(raw, "token_type", Type.INT32, [7] * 320),
            "token_type: 320 values; expected a type for each of 320 tokens",
        ),
        (
            lambda raw: raw.metadata.pop("tokenizer.ggml.token_type"),
            "token_type: 0 values; expected a type for each of 320 tokens",
        ),
        (lambda raw: raw.metadata.pop("tokenizer.ggml.tokens"), "tokens: missing; expected an array of strings"),
        (lambda raw: put(raw, "merges", Type.STRING, []), "merges: empty; expected an array of strings"),
        (lambda raw: raw.metadata.pop("tokenizer.ggml.merges"), "merges: missing; expected an array of strings"),
        (
            lambda raw: item(raw, "token_type", 259, UNUSED),
            "merges: 'a n'; expected two tokens that join to a third",
        ),
        (
            lambda raw: item(raw, "tokens", 200, "longer"),
            "tokens: 1 of 256 bytes have none, such as È; expected a token for each byte, so that no text is lost",
        ),
        (
            lambda raw: raw.metadata.update({"tokenizer.ggml.eot_token_id": (Type.INT32, -1)}),
            "eot_token_id: -1; expected an id below 320",
        ),
        (
            lambda raw: raw.metadata.update({"tokenizer.ggml.eom_token_id": (Type.UINT32, 2**32 - 1)}),
            "eom_token_id: 4294967295; expected an id below 320",
        ),
        (
            lambda raw: raw.metadata.update({"tokenizer.ggml.fim_pre_token_id": (Type.UINT32, 320)}),
            "fim_pre_token_id: 320; expected an id below 320",
        ),
        (
            lambda raw: raw.metadata.update({"tokenizer.ggml.eot_token_id": (Type.UINT32, 319)}),
            "eot_token_id: 319; expected a token that is in use",
        ),
        (lambda raw: raw.metadata.pop("tokenizer.ggml.pre"), "pre: missing; expected glm4 or chatglm-bpe"),
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
    ids=[
        "model", "bos", "doubled", "kinds", "unknown-kind", "no-kinds", "no-tokens", "empty-merges", "no-merges",
        "unused-in-merge", "byte", "eot-minus-1", "eom-minus-1", "other-id", "unused-id", "no-pre", "merge", "eos-range",
        "no-eos", "pre",
    ],
)  # fmt: skip
def test_refused(
    change: Any, expected: str, raw: RawGGUF, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A vocabulary that is not GLM's, or contradicts itself, is refused by the key at fault, by `inspect` already."""
    change(raw)
    path = raw.write(tmp_path / "m.gguf")

    with pytest.raises(GGUFError) as refused:
        tokenizer_json(read_vocabulary(read_header(path)))
    assert str(refused.value).startswith(
        f"metadata key tokenizer.ggml.{expected}. Stage the publisher's tokenizer too "
    )
    assert main(["inspect", str(path)]) == 4
    assert capsys.readouterr().err == f"{refused.value}\n"


TOO_MANY = "tokens in the metadata: 321; expected at most the model's 320. "


def test_more_tokens_than_the_embedding(
    raw: RawGGUF, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A vocabulary larger than the embedding is refused by `inspect`."""
    for key, value in (("tokens", "one-more"), ("token_type", NORMAL)):
        raw.metadata[f"tokenizer.ggml.{key}"][1].items.append(value)

    assert main(["inspect", str(raw.write(tmp_path / "m.gguf"))]) == 4
    assert capsys.readouterr().err.startswith(TOO_MANY)


TEMPLATES = {
    "only-named": (
        {"tokenizer.chat_template": None, "tokenizer.chat_template.tool_use": "{{ messages[0].content }}"},
        "metadata key tokenizer.chat_template: only named ones, tool_use; expected a default template. ",
    ),
    "none": (
        {"tokenizer.chat_template": None},
        "metadata key tokenizer.chat_template: missing; expected a default template. ",
    ),
    "not-text": (
        {"tokenizer.chat_template": 5},
        "metadata key tokenizer.chat_template: missing; expected a default template. ",
    ),
    "syntax": (
        {"tokenizer.chat_template": "a\n{% for m in messages %}{{ m.content }}"},
        "chat template default does not compile: line 2, Unexpected end of template",
    ),
    "filter": (
        {"tokenizer.chat_template": "{{ messages | nonsense }}"},
        "chat template default does not compile: line 1, No filter named 'nonsense'.. ",
    ),
    "named-syntax": (
        {"tokenizer.chat_template.rag": "{% if %}"},
        "chat template rag does not compile: line 1, Expected an expression, got 'end of statement block'. ",
    ),
    "raises": (
        {"tokenizer.chat_template": "{{ raise_exception('no chats') }}"},
        "chat template default fails on a chat of one question: no chats. ",
    ),
    "undefined": (
        {"tokenizer.chat_template": "{{ nobody.knows.this }}"},
        "chat template default fails on a chat of one question: 'nobody' is undefined. ",
    ),
    "blind": (
        {"tokenizer.chat_template": "{% for m in messages %}{{ m.text }}{% endfor %}<|assistant|>"},
        "chat template default leaves the user's message out: <|assistant|>. ",
    ),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_templates_no_chat_can_be_written_with(
    case: str, raw: RawGGUF, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file whose chats would all fail is refused by `inspect`; another template, or folder, takes its place."""
    changes, expected = TEMPLATES[case]
    for key, value in changes.items():
        if value is None:
            del raw.metadata[key]
        else:
            raw.metadata[key] = (Type.STRING if isinstance(value, str) else Type.UINT32, value)
    path = raw.write(tmp_path / "m.gguf")

    assert main(["inspect", str(path)]) == 4
    error = capsys.readouterr().err
    assert error.startswith(expected)
    assert error.endswith("Give another template (model.chat_template, --chat-template)\n")
    other = tmp_path / "other.jinja"
    other.write_text("{{ messages[0].content }}")
    assert main(["inspect", str(path), "--chat-template", str(other)]) == 0
    assert main(["inspect", str(path), "--hf-folder", str(tmp_path)]) == 0
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).touch()
    assert main(["inspect", str(path)]) == 0
    assert "  tokenizer     of the Hugging Face folder\n" in capsys.readouterr().out


def test_other_template_that_cannot_serve(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The template that is given instead of the file's is checked as that is."""
    other = tmp_path / "other.jinja"
    other.write_text("{% if %}")

    assert main(["inspect", str(tiny.path), "--chat-template", str(other)]) == 4
    assert f"chat template {other} does not compile: line 1, " in capsys.readouterr().err
    assert main(["inspect", str(tiny.path), "--chat-template", str(tmp_path / "none")]) == 4
    assert f"cannot read {tmp_path / 'none'}: No such file or directory. " in capsys.readouterr().err


def test_training_marks_and_loop_controls(raw: RawGGUF, tmp_path: Path) -> None:
    """What transformers adds to Jinja is known: generation marks, loop controls, tojson, the time."""
    source = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
        "{{ messages | tojson(indent=2) }}{{ strftime_now('%Y') }}"
    )
    raw.metadata["tokenizer.chat_template"] = (Type.STRING, source)

    assert main(["inspect", str(raw.write(tmp_path / "m.gguf"))]) == 0


def test_named_templates(exported: RawGGUF, tmp_path: Path) -> None:
    """transformers finds each named template beside the default one."""
    from transformers import AutoTokenizer

    exported.metadata["tokenizer.chat_template.short"] = (Type.STRING, "{{ messages[0].content }}!")
    vocabulary = read_vocabulary(read_header(exported.write(tmp_path / "m.gguf")))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(vocabulary)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(vocabulary, 4096)))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "hi"}]

    assert tokenizer.apply_chat_template(messages, tokenize=False) == "[gMASK]<sop><|user|>hi"
    assert tokenizer.apply_chat_template(messages, chat_template="short", tokenize=False) == "hi!"
