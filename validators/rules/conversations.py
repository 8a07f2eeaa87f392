"""Conversation rules: the supervised text of prepared conversations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from neobert.plan import Plan
from neobert.plurals import counted, percent
from neobert.runfiles.conversation_faults import Fault
from neobert.tasks.conversation_pieces import FEW_LOST, MANY_LOST
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Severity, Violation
from validators.rule import Violations, data_rule, require_group
from validators.rules.data_prepared import NOTHING_SUPERVISED, longer_rows_hint, require_prepared
from validators.tasks import trains_on_conversations

if TYPE_CHECKING:
    from validators.facts_run import PreparedFacts

TEMPLATE, LENGTH = "tokenizer.chat_template", "dataset.max_seq_length"
OTHER_TEMPLATE = f"set {TEMPLATE} to another template"
MAX_SUPERVISED = 0.995
SPLITS = {"train": "training", "eval": "evaluation"}


def fault_messages(prepared: PreparedFacts, *kinds: Fault) -> Iterator[str]:
    """Yield a message for each fault of these kinds in a split, with its count and first conversation."""
    for fault in prepared.faults:
        if fault.kind in kinds:
            number = counted(fault.count, f"{SPLITS[fault.split]} conversation")
            yield f"{number}, the first is number {fault.first:,} in this split: {fault.detail}"


@data_rule("SFT001", "nothing-supervised", severity=Severity.FAIL, tasks=trains_on_conversations)
def nothing_supervised(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Conversations without a supervised token.

    ## What it does
    Counts the conversations in which no token is a target, and gives the reason for the first one: no message
    of the assistant, a template that fails or renders the turns differently, a control token in a message.
    Fails for any such conversation.

    ## Why is this bad?
    They are left out. If all are, nothing is trained; if some are, the run trains on other data than was
    given. Most stock templates mark no text of the assistant: a mask taken from the marks is all zeros.

    ## Example
    ```text
    no token of 500 conversations is supervised: the generation prompt is '<|assistant|><think>', but message
    2 begins with '<|assistant|>It is'
    ```

    ## Use instead
    ```yaml
    tokenizer:
      chat_template: template.jinja
    ```
    """
    inspection = require_group(facts.inspection)
    if inspection.refusal.code == NOTHING_SUPERVISED:
        hint = inspection.refusal.hint
        yield Violation(TEMPLATE if TEMPLATE in hint else "dataset.path", inspection.refusal.message, hint)
        return
    prepared = require_prepared(facts)
    if without := prepared.conversations.get("without_target", 0):
        of = f"{without:,} of {counted(prepared.num_conversations, 'conversation')}"
        reason = next(
            fault_messages(prepared, Fault.NO_TURN, Fault.FAILED, Fault.REWRITTEN, Fault.LOST, Fault.CONTROL),
            "",
        )
        message = f"{of} do not have a supervised token{f' ({reason})' if reason else ''}"
        yield Violation(TEMPLATE, message, f"correct or remove these conversations, or {OTHER_TEMPLATE}")


@data_rule("SFT002", "everything-supervised", severity=Severity.FAIL, tasks=trains_on_conversations)
def everything_supervised(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Supervised text that the assistant does not write.

    ## What it does
    Fails if at least 99.5 % of the tokens are supervised, or if supervised text is not the assistant's: marks
    of a template that include a role header or a prompt, or a template without a generation prompt.

    ## Why is this bad?
    A model that learns to write the user's messages continues a conversation by itself, and one that learns
    role headers writes them twice: the generation prompt ends with the header.

    ## Example
    ```yaml
    sft:
      supervise: everything
    ```

    ## Use instead
    ```yaml
    sft:
      supervise: prefix
    ```
    """
    prepared = require_prepared(facts)
    supervised, total = prepared.conversations.get("supervised"), prepared.num_tokens
    if supervised and total and supervised / total >= MAX_SUPERVISED:
        share = f"{supervised / total:.2%} of the tokens are supervised (limit {MAX_SUPERVISED:.1%})"
        yield Violation(
            TEMPLATE, share, "set sft.supervise to prefix, or waive this rule to train on prompts too"
        )
    for message in fault_messages(prepared, Fault.OUTSIDE):
        yield Violation(TEMPLATE, message, f"set sft.supervise to prefix, or {OTHER_TEMPLATE}")
    for message in fault_messages(prepared, Fault.NO_PROMPT):
        yield Violation(TEMPLATE, message, f"set {TEMPLATE} to a template that writes a generation prompt")


@data_rule("SFT003", "content-lost", severity=Severity.FAIL, tasks=trains_on_conversations)
def content_lost(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Assistant messages missing from the supervised text, or tools missing from the prompt.

    ## What it does
    Looks for the content of each supervised message, without whitespace, in the supervised text of its
    conversation, for the names of the tools that it calls, and for the thoughts (reasoning_content) of a
    message that ends a conversation. Also renders conversations with tools without them: if both texts are
    equal, the template ignores tools. Fails if anything is missing.

    ## Why is this bad?
    Templates of vision-language models render lists of parts but nothing for a string, and many templates
    omit tool calls: the model would learn to write stop tokens alone, or to call tools that nothing in its
    prompt describes.

    ## Example
    ```text
    the template leaves out content of the assistant: 'Itisfour.'
    ```

    ## Use instead
    ```yaml
    tokenizer:
      chat_template: template.jinja     # one that writes content and tool_calls
    ```
    """
    for message in fault_messages(require_prepared(facts), Fault.LOST, Fault.TOOLS):
        hint = f"set {TEMPLATE} to a template that writes this part, or remove the part from the rows"
        yield Violation(TEMPLATE, message, hint)


@data_rule("SFT004", "stop-not-trained", severity=Severity.FAIL, tasks=trains_on_conversations)
def stop_not_trained(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Turns that do not end with a stop token.

    ## What it does
    Looks at the last supervised token of each turn: it must be a special token of the tokenizer, such as
    <|im_end|>. Checkpoints list these tokens in generation_config.json.

    ## Why is this bad?
    A model that never learned to end a turn writes until the token limit.

    ## Example
    ```text
    a turn ends with '.', not with a special token that stops the model
    ```

    ## Use instead
    ```text
    a template that ends each message of the assistant with the eos token or another special token
    ```
    """
    for message in fault_messages(require_prepared(facts), Fault.NO_STOP):
        yield Violation(
            TEMPLATE, message, f"set {TEMPLATE} to a template that ends each turn with a special token"
        )


@data_rule("SFT005", "turn-rewritten", severity=Severity.FAIL, tasks=trains_on_conversations)
def turn_rewritten(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Turns that the template renders differently from what the model would write.

    ## What it does
    Renders the beginnings of each conversation: a turn must begin with the generation prompt, and must not
    change once other messages follow it. Turns that do not are not supervised, and refused.

    ## Why is this bad?
    Templates of reasoning models remove thoughts from earlier turns, and open <think> in the generation
    prompt only: the model would be trained on text that it never writes, or after prompts that it never sees.

    ## Example
    ```yaml
    sft:
      turns: all
    ```

    ## Use instead
    ```yaml
    sft:
      turns: last      # the last turn is rendered as it was written
    ```
    """
    for message in fault_messages(require_prepared(facts), Fault.REWRITTEN):
        yield Violation(TEMPLATE, message, f"set sft.turns to last, or {OTHER_TEMPLATE}")


@data_rule("SFT006", "repr-rendered", severity=Severity.FAIL, tasks=trains_on_conversations)
def repr_rendered(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Python values that a template rendered as text.

    ## What it does
    Looks for {'type': and {'role': in rendered conversations whose messages do not contain them.

    ## Why is this bad?
    The model would learn to read and write the printed form of data structures, such as a list of parts or
    tool calls, which no other program sends to it.

    ## Example
    ```text
    the template renders Python's form of a value: "{'type': 'function', 'function'"
    ```

    ## Use instead
    ```text
    a template that writes tool calls with the filter tojson
    ```
    """
    for message in fault_messages(require_prepared(facts), Fault.REPR):
        yield Violation(
            TEMPLATE, message, f"set {TEMPLATE} to a template that writes values with the filter tojson"
        )


@data_rule("SFT007", "template-reads-clock", severity=Severity.FAIL, tasks=trains_on_conversations)
def template_reads_clock(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A template that writes today's date into the training text.

    ## What it does
    Without `sft.template_date`, renders conversations again with another date, if the template calls
    strftime_now, and compares the texts.

    ## Why is this bad?
    The same run trains on different text on another day, so it cannot be repeated, and every example has the
    date of the preparation.

    ## Example
    ```yaml
    sft:
      template_date: null
    ```

    ## Use instead
    ```yaml
    sft:
      template_date: 2024-07-26
    ```
    """
    for message in fault_messages(require_prepared(facts), Fault.CLOCK):
        yield Violation(TEMPLATE, message, "set sft.template_date to its default")


@data_rule("SFT008", "targets-lost-to-length", severity=Severity.FAIL, tasks=trains_on_conversations)
def targets_lost_to_length(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Supervised tokens that are lost because conversations are too long.

    ## What it does
    Counts the supervised tokens of dropped and truncated conversations, and of turns that do not fit. Warns
    above 1 % of the supervised tokens, fails above 10 %.

    ## Why is this bad?
    Long answers are lost first, so the model is trained on shorter ones than were collected.

    ## Example
    ```yaml
    dataset:
      max_seq_length: 512
      long_documents: drop
    ```

    ## Use instead
    ```yaml
    dataset:
      max_seq_length: 4096
      long_documents: split      # at turns of the assistant
    ```
    """
    conversations = require_prepared(facts).conversations
    lost, kept = (conversations.get(name, 0) for name in ("lost", "supervised"))
    if lost and (share := lost / (lost + kept)) > FEW_LOST:
        message = (
            f"{percent(share)} of the supervised tokens are lost (limit {MANY_LOST:.0%}, a warning above "
            f"{FEW_LOST:.0%}): {lost:,} of {lost + kept:,}"
        )
        is_cut = run.config.dataset.long_documents != "split"
        hint = f"{longer_rows_hint(run, plan)}{', or set dataset.long_documents to split' if is_cut else ''}"
        yield Violation(LENGTH, message, hint, Severity.WARN if share <= MANY_LOST else None)


@data_rule("SFT009", "control-tokens-in-content", severity=Severity.FAIL, tasks=trains_on_conversations)
def control_tokens_in_content(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Messages that spell control tokens.

    ## What it does
    Looks for special tokens, and for added tokens that the template writes, in messages and tools. A
    conversation with one is left out, unless `sft.control_tokens` is neutralize.

    ## Why is this bad?
    A message with <|im_end|> ends its turn, and what follows is read as another message: a system prompt from
    a user, or a stop token in the middle of an answer.

    ## Example
    ```text
    a message spells the control token '<|im_end|>'
    ```

    ## Use instead
    ```yaml
    sft:
      control_tokens: neutralize     # tokenize it as plain text
    ```
    """
    for message in fault_messages(require_prepared(facts), Fault.CONTROL):
        yield Violation("dataset", message, "set sft.control_tokens to neutralize, or correct these messages")


@data_rule("SFT010", "other-template-than-trained", severity=Severity.FAIL, tasks=trains_on_conversations)
def other_template_than_trained(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A different chat template from the one that the initial weights were trained with.

    ## What it does
    Compares the chat template of the run with the one in the folder of the initial weights, if that has one.

    ## Why is this bad?
    A chat model knows the headers and stop tokens of its own template. With another one it starts as a base
    model would, and its old headers still trigger its old behaviour.

    ## Example
    ```yaml
    model:
      pretrained_checkpoint: models/chat
    tokenizer:
      chat_template: other.jinja
    ```

    ## Use instead
    ```yaml
    model:
      pretrained_checkpoint: models/chat
    tokenizer:
      chat_template: null
    ```
    """
    if require_prepared(facts).is_other_template:
        message = "the chat template differs from the template of the initial weights"
        is_set = run.config.tokenizer.chat_template is not None
        own = f"set {TEMPLATE} to null" if is_set else "set tokenizer.path to the folder of the weights"
        yield Violation(TEMPLATE, message, f"{own}, or waive this rule to teach another template")
