"""How a prompt of a public model begins, and where its answer ends: templates, BOS, end tokens and stop strings."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from specbench.decoding.build import build_decoder
from specbench.decoding.loop import StopRules, WrittenText
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.gguf.header import read_header
from specbench.models.loading import load_model, load_tokenizer, model_sampling
from specbench.specs.catalogue import load_method
from tests.support.gguf_files import needs_llama_cpp
from tests.support.loops import GREEDY, autoregressive
from tests.support.public_models import Answered, answered, generate

pytestmark = pytest.mark.real

CONVERSATION = ["What is 2 + 3?", "5", "And <|im_end|> 5 + 4?"]
# As the instruct releases of Gemma have it: the template writes BOS itself.
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
QUESTION = "Name three primary colors, separated by commas."
JAPANESE = "日本の首都は東京です。フランスの首都はパリです。イタリアの"
NUM_TOKENS = 28


def changed_folder(source: Path, folder: Path, **files: str) -> Path:
    """Links a checkpoint into a folder, with some files replaced; "__" stands for a dot in their names."""
    folder.mkdir()
    replaced = {name.replace("__", "."): content for name, content in files.items()}
    for path in source.iterdir():
        if path.name not in replaced:
            (folder / path.name).symlink_to(path)
    for name, content in replaced.items():
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen-coder-0.5b"])
def test_a_conversation_is_what_the_tokenizer_makes_of_it(name: str, real_models: Path) -> None:
    """Also where the user's text has a special token, which ends the user's turn: the text is not the harness's."""
    model = load_model(str(real_models / name), device="cpu", weights=False)
    tokenizer = AutoTokenizer.from_pretrained(real_models / name)
    messages = [
        {"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(CONVERSATION)
    ]
    start, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    for system in (None, "Answer with a number."):
        told = messages if system is None else [{"role": "system", "content": system}, *messages]
        prompt = model.render_prompt(CONVERSATION, chat=True, system=system)
        assert prompt.ids == tokenizer.apply_chat_template(told, add_generation_prompt=True, return_dict=False)
        assert prompt.ids.count(start) == 5 and prompt.ids.count(end) == 5  # system, three messages; the last is open
        assert (system or "You are") in prompt.text


def test_a_prompt_of_gemma_has_one_bos(real_models: Path, tmp_path: Path) -> None:
    """The tokenizer adds it to plain texts, and the template of an instruct release writes it."""
    folder = changed_folder(real_models / "gemma3-270m", tmp_path / "gemma", chat_template__jinja=GEMMA_TEMPLATE)
    model = load_model(str(folder), device="cpu", weights=False)
    bos = model.tokenizer.bos_token_id
    plain, chat = (model.render_prompt([QUESTION], chat=chat) for chat in (False, True))
    for prompt in (plain, chat):
        assert prompt.ids[0] == bos and prompt.ids.count(bos) == 1 and len(prompt.ids) > 8
    assert chat.text.startswith("<bos><start_of_turn>user\n") and chat.text.endswith("<start_of_turn>model\n")
    assert model.text_vocabulary.bos_ids == [bos]  # what a drafter reads first


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m", "qwen-coder-0.5b"])
def test_a_gguf_file_has_the_prompts_of_its_folder(name: str, real_models: Path) -> None:
    pytest.importorskip("gguf")
    ours, theirs = (load_model(str(real_models / each), device="cpu", weights=False) for each in (f"{name}.gguf", name))
    texts = [QUESTION, JAPANESE, "def f(x):\n\treturn  x**2  # 🙂\n", "a <|im_end|> b"]
    for text in texts:
        assert ours.render_prompt([text], chat=False).ids == theirs.render_prompt([text], chat=False).ids
        if theirs.chat_template.exists:
            assert ours.render_prompt([text], chat=True).ids == theirs.render_prompt([text], chat=True).ids
    assert theirs.eos_token_ids <= ours.eos_token_ids  # the file names more tokens that end a turn
    assert ours.chat_template.exists == theirs.chat_template.exists == (name != "gemma3-270m")


@pytest.mark.parametrize(
    ("name", "more"),
    [("smollm2-135m", {0: "<|endoftext|>"}), ("gemma3-270m", {106: "<end_of_turn>"}),
     ("qwen-coder-0.5b", {151643: "<|endoftext|>"}), ("qwen-coder-1.5b", {151643: "<|endoftext|>"})],
)  # fmt: skip
def test_a_gguf_file_ends_answers_at_its_keys_and_at_ends_of_turns(
    name: str, more: dict[int, str], real_models: Path
) -> None:
    """The folders' generation configs were made of the files' key `eos`. The file's other ends are control tokens, at
    which llama.cpp ends too; of its ends, only the marks of repositories and `</s>` are none here."""
    needs_llama_cpp()
    from specbench.models.gguf.engine import LlamaNetwork

    path = real_models / f"{name}.gguf"
    named = json.loads((real_models / name / "generation_config.json").read_text())["eos_token_id"]
    header = read_header(path)
    assert header.end_tokens["tokenizer.ggml.eos_token_id"] == [named]
    assert header.end_ids == {named, *more}  # the stops of a run: see GgufLM
    assert {index: header.tokens[index].decode() for index in more} == more
    network = LlamaNetwork(path, only_vocabulary=True)
    theirs = {each for each in range(network.num_tokens) if network.api.llama_vocab_is_eog(network.vocab, each)}
    assert header.end_ids < theirs
    marks = {"</s>", "<reponame>", "<|repo_name|>", "<|file_sep|>", "<|fim_pad|>"}
    assert {header.tokens[each].decode() for each in theirs - header.end_ids} <= marks


HUB: dict[str, Any] = {  # of Qwen's instruct releases
    "do_sample": True, "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
}  # fmt: skip


def test_end_tokens_are_those_of_the_generation_config_too(real_models: Path, tmp_path: Path) -> None:
    """Instruct releases end at two tokens, of which config.json names one. Known before the weights are loaded."""
    tokenizer = load_tokenizer(str(real_models / "qwen-coder-0.5b"))
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    content = json.dumps({**HUB, "eos_token_id": ends})
    folder = changed_folder(real_models / "qwen-coder-0.5b", tmp_path / "qwen", generation_config__json=content)
    assert load_model(str(folder), device="cpu", weights=False).eos_token_ids == set(ends) == {151645, 151643}
    sampling = model_sampling(str(folder), None)
    assert sampling.values == {"temperature": 0.7, "top_k": 20, "top_p": 0.8}
    assert sampling.others == {"repetition_penalty": 1.1}


def test_greedy_answers_have_no_repetition_penalty_and_end_at_each_end_token(
    smollm: CausalLM, real_models: Path, tmp_path: Path
) -> None:
    """A checkpoint's generation config ends answers, and changes nothing else of them."""
    ids = smollm.encode_prompt(QUESTION, chat=True)
    whole = autoregressive(smollm, ids, StopRules(NUM_TOKENS, smollm.eos_token_ids))
    end = whole.token_ids[len(whole.token_ids) // 2]
    content = json.dumps({**HUB, "repetition_penalty": 1.5, "eos_token_id": [2, end]})
    folder = changed_folder(real_models / "smollm2-135m", tmp_path / "smollm", generation_config__json=content)
    model = load_model(str(folder), device="cpu", dtype="float32")
    assert model.eos_token_ids == {2, end}
    found = autoregressive(model, ids, StopRules(NUM_TOKENS, model.eos_token_ids))
    assert found.finish == whole.finish == "eos" and 1 < len(found.token_ids) < len(whole.token_ids)
    assert found.token_ids == whole.token_ids[: whole.token_ids.index(end) + 1]
    assert generate(model.model, ids, NUM_TOKENS, repetition_penalty=1.0) == found.token_ids
    assert generate(model.model, ids, NUM_TOKENS, eos_token_id=2) != whole.token_ids  # its penalty changes the answer


@pytest.fixture(scope="module")
def known(smollm: CausalLM) -> Answered:
    return answered(smollm, [(QUESTION, True), (JAPANESE, False)], NUM_TOKENS)


@pytest.mark.parametrize("method", ["sd", "sd-tree", "pld"])
def test_answers_end_at_a_stop_string_that_spans_tokens(method: str, known: Answered, smollm_drafter: CausalLM) -> None:
    """The stop strings begin and end inside tokens, or are a character of several tokens."""
    target, num_hit = known.target, 0
    decoder = build_decoder(load_method(method), ModelPair(target, smollm_drafter), GREEDY)
    for number, answer in enumerate(known.answers):
        whole = target.decode_text(answer.token_ids)
        first, last = (len(target.decode_text(answer.token_ids[:length])) for length in (3, 6))
        stop = whole[first + 1 : last - 1] if number == 0 else whole[8]
        rules = StopRules(NUM_TOKENS, target.eos_token_ids, (stop,), target.decode_text)
        texts = [target.decode_text(answer.token_ids[:length]) for length in range(len(answer.token_ids) + 1)]
        expected = next(length for length, text in enumerate(texts) if stop in text)
        assert stop not in target.tokenizer.convert_ids_to_tokens(answer.token_ids[:expected])
        output = decoder.generate(answer.prompt_ids, rules, seed=0)
        assert output.finish == "stop" and output.token_ids == answer.token_ids[:expected]
        written = WrittenText.of(rules, answer.prompt_ids, output.token_ids)
        assert written.text == whole[: whole.index(stop)]
        num_hit += 1
    assert num_hit == 2


def test_a_drafted_end_token_ends_the_answer_and_is_kept(known: Answered, smollm_drafter: CausalLM) -> None:
    """The drafter ends the answer, or the target does; what follows is dropped, and the text has no special token."""
    (end,) = known.target.eos_token_ids
    for method in ("sd", "sd-tree"):
        decoder = build_decoder(load_method(method), ModelPair(known.target, smollm_drafter), GREEDY)
        output = decoder.generate(known.answers[0].prompt_ids, known.stop, seed=0)
        assert output.finish == "eos" and output.token_ids == known.answers[0].token_ids
        assert output.token_ids.index(end) == len(output.token_ids) - 1
        assert "<|im_end|>" not in known.target.decode_text(output.token_ids)
        assert "<|im_end|>" in known.target.tokenizer.decode(output.token_ids)
