"""How text is cut before byte-level merges, by the names that GGUF files use for it.

Knows nothing of vocabularies. The names are llama.cpp's (``tokenizer.ggml.pre``), the expressions those of the models'
own ``tokenizer.json`` files; each splits the pieces that the one before left.
"""

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from chairlift.errors import ModelLoadError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS_AND_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_SIGNS_AND_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_SIGNS_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_CASED_WORDS[0]}|{_CASED_WORDS[1]}|\p{{N}}|{_SIGNS_WITH_SLASH}"
_GPT4O = rf"{_CASED_WORDS[0]}{_CONTRACTIONS}?|{_CASED_WORDS[1]}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_SIGNS_WITH_SLASH}"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True, slots=True)
class PreTokenization:
    """How a family of models cuts text.

    ``ignores_merges`` takes a piece that is a token as it is, even if the merges would not lead to it; ``adds_bos`` is
    what holds for a file that does not say.
    """

    patterns: tuple[str, ...]
    ignores_merges: bool = False
    adds_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Return it as the ``tokenizers`` library runs it."""
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_FAMILIES: dict[tuple[str, ...], PreTokenization] = {
    ("default",): PreTokenization((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"): PreTokenization(
        (_LLAMA3,), ignores_merges=True, adds_bos=True
    ),
    ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"): PreTokenization((_LLAMA3,)),
    ("tekken",): PreTokenization((_TEKKEN,), ignores_merges=True, adds_bos=True),
    ("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"): PreTokenization(
        (_QWEN2,)
    ),
    ("qwen35",): PreTokenization((_QWEN35,)),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"): PreTokenization((_GPT4O,)),
    (
        "gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "modern-bert", "mpt", "olmo", "jais", "trillion", "exaone4",
        "granite-docling",
    ): PreTokenization((_GPT2,)),
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"): PreTokenization(
        (r"\p{N}", _GPT2)
    ),
    ("falcon",): PreTokenization((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    ("deepseek-coder",): PreTokenization(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-一가-퟿]+", r"\p{N}")
    ),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm"): PreTokenization((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)),
    ("bloom", "poro-chat", "gpt3-finnish"): PreTokenization((_BLOOM,)),
    ("viking",): PreTokenization((_BLOOM, r"\p{N}")),
}  # fmt: skip

_BY_NAME = {name: family for names, family in _FAMILIES.items() for name in names}


def find_pre_tokenization(name: str) -> PreTokenization:
    """Look up llama.cpp's name for a pre-tokenizer.

    Raises:
        ModelLoadError: the name is unknown; guessing would make wrong tokens without a sign.
    """
    family = _BY_NAME.get(name)
    if family is None:
        raise ModelLoadError(
            f"tokenizer.ggml.pre is {name!r}, which is not supported for GGUF files; serve the original Hugging Face "
            f"folder instead. Supported: {', '.join(sorted(_BY_NAME))}"
        )
    return family
