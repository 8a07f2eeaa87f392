"""Tokenizers of whole words that frame texts as GPT-2, Llama, BERT or RoBERTa do, or not at all."""

from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import RobertaProcessing, TemplateProcessing
from transformers import PreTrainedTokenizerFast

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
KINDS = {
    "nothing": None,
    "end of text": ("$A </s>", "$A </s> $B </s>"),
    "beginning": ("<s> $A", "<s> $A <s> $B:1"),
    "BERT": ("<s> $A </s>", "<s> $A </s> $B:1 </s>:1"),
    "RoBERTa": RobertaProcessing((END, 1), (START, 0)),
}


def tokenizer_of(kind, words, *, unknown=UNKNOWN, **roles):
    """Build a tokenizer of these words that frames texts in this way, without padding."""
    tokens = dict.fromkeys([START, END, unknown, *sorted(words)])
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    processor = KINDS[kind]
    if isinstance(processor, tuple):
        marks = [(START, 0), (END, 1)]
        processor = TemplateProcessing(single=processor[0], pair=processor[1], special_tokens=marks)
    if processor is not None:
        backend.post_processor = processor
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token=unknown, **roles)
