"""The official Python client against the real engine. The demo model's text is noise; a bias of 100
leaves it only chosen tokens."""
import openai
import pytest

from conftest import MODEL

HELLO = [{"role": "user", "content": "Hello"}]
PLAIN = {"reasoning_effort": "none"}


@pytest.fixture(scope="module")
def create(demo):
    client = demo.client()

    def call(messages=None, **kw):
        return client.chat.completions.create(model=MODEL, messages=messages or HELLO, **kw)
    return call


def test_answer(demo, create):
    r = create(max_tokens=5, logit_bias=demo.force(" the"), **PLAIN)
    assert r.id.startswith("chatcmpl-") and r.object == "chat.completion" and r.model == MODEL
    assert r.system_fingerprint and r.created > 1600000000
    c = r.choices[0]
    assert c.message.role == "assistant" and c.message.content == " the" * 5
    assert c.finish_reason == "length" and c.logprobs is None and c.message.refusal is None
    assert c.message.tool_calls is None
    assert not hasattr(c.message, "reasoning_content")


def test_usage(create):
    u = create(max_tokens=7, **PLAIN, extra_body={"ignore_eos": True}).usage
    assert u.completion_tokens == 7 and u.total_tokens == u.prompt_tokens + 7
    assert u.completion_tokens_details.reasoning_tokens == 0
    assert u.prompt_cache_hit_tokens + u.prompt_cache_miss_tokens == u.prompt_tokens
    assert u.prompt_tokens_details.cached_tokens == u.prompt_cache_hit_tokens


def test_prompt_tokens_as_tokenize_counts(demo, create):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One?"},
                {"role": "assistant", "content": "Two."}, {"role": "user", "content": "Three?"}]
    n = demo.post("/tokenize", {"messages": messages}).json()["count"]
    assert create(messages, max_tokens=1).usage.prompt_tokens == n


def test_stream(demo, create):
    text = ""
    finish = []
    for e in create(max_tokens=5, stream=True, logit_bias=demo.force(" the"), **PLAIN):
        assert e.object == "chat.completion.chunk" and len(e.choices) == 1 and e.usage is None
        text += e.choices[0].delta.content or ""
        finish.append(e.choices[0].finish_reason)
    assert text == " the" * 5
    assert finish[-1] == "length" and set(finish[:-1]) == {None}


def test_stream_usage(create):
    got = list(create(max_tokens=3, stream=True, stream_options={"include_usage": True},
                      extra_body={"ignore_eos": True}))
    assert got[-1].choices == [] and got[-1].usage.completion_tokens == 3
    assert all(e.usage is None and e.choices for e in got[:-1])


def test_end_token(demo, create):
    r = create(max_tokens=9, logit_bias=demo.force("<｜end▁of▁sentence｜>"), **PLAIN)
    assert r.choices[0].finish_reason == "stop" and r.choices[0].message.content == ""
    assert r.usage.completion_tokens == 1


def test_ignore_eos(demo, create):
    r = create(max_tokens=4, logit_bias=demo.force("<｜end▁of▁sentence｜>"), **PLAIN,
               extra_body={"ignore_eos": True})
    assert r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 4


def test_min_tokens(demo, create):
    for n in (0, 6):
        r = create(max_tokens=12, temperature=2, seed=4, **PLAIN,
                   logit_bias=demo.force("<｜end▁of▁sentence｜>", " the"),
                   extra_body={"min_tokens": n})
        assert r.usage.completion_tokens > n or r.choices[0].finish_reason == "length"
        assert r.choices[0].message.content.startswith(" the" * n)


def test_reasoning(demo, create):
    r = create(max_tokens=4, logit_bias=demo.force(" the"))
    assert r.choices[0].message.reasoning_content == " the" * 4
    assert r.choices[0].message.content == ""
    assert r.usage.completion_tokens_details.reasoning_tokens == 4


def test_reasoning_stream(demo, create):
    got = list(create(max_tokens=4, stream=True, logit_bias=demo.force(" the")))
    assert "".join(getattr(e.choices[0].delta, "reasoning_content", "") for e in got) == " the" * 4
    assert not any(e.choices[0].delta.content for e in got)


def test_reasoning_ends(demo, create):
    r = create(max_tokens=1, logit_bias=demo.force("</think>"))
    assert r.choices[0].message.reasoning_content == "" and r.choices[0].message.content == ""


@pytest.mark.parametrize("field,names", [("reasoning", {"reasoning"}),
                                         ("both", {"reasoning", "reasoning_content"})])
def test_reasoning_field(start_demo, field, names):
    s = start_demo("--server.reasoning_field=" + field)
    bias = s.force(" the")
    message = s.ask(max_tokens=2, logit_bias=bias)["choices"][0]["message"]
    assert {k: v for k, v in message.items() if k.startswith("reasoning")} == \
        dict.fromkeys(names, " the the")
    deltas = [e["choices"][0]["delta"] for e in s.stream(max_tokens=2, logit_bias=bias)]
    assert all(set(d) <= {"role", "content"} or set(d) == names for d in deltas)
    assert any(set(d) == names for d in deltas)


@pytest.mark.parametrize("effort", ["low", "high", "xhigh", "max"])
def test_effort_names(demo, effort):
    assert "reasoning_content" in \
        demo.ask(max_tokens=1, reasoning_effort=effort)["choices"][0]["message"]


@pytest.mark.parametrize("off", [{"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}},
                                 {"chat_template_kwargs": {"thinking": False}},
                                 {"chat_template_kwargs": {"enable_thinking": False}}])
def test_thinking_off(demo, off):
    assert "reasoning_content" not in demo.ask(max_tokens=1, **off)["choices"][0]["message"]


@pytest.mark.parametrize("stop,include,text", [(" the the", False, ""),
                                               ("the the", False, " "),
                                               (["xyz", "e the"], True, " the the"),
                                               ("nothing of it", False, " the" * 6)])
@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(demo, create, stop, include, text, stream):
    r = create(max_tokens=6, stop=stop, stream=stream, logit_bias=demo.force(" the"), **PLAIN,
               extra_body={"include_stop_str_in_output": include})
    if stream:
        choices = [e.choices[0] for e in r]
        got, finish = "".join(c.delta.content or "" for c in choices), choices[-1].finish_reason
    else:
        got, finish = r.choices[0].message.content, r.choices[0].finish_reason
    assert got == text and finish == ("length" if len(text) > 9 else "stop")


def test_stop_leaves_reasoning_alone(demo, create):
    r = create(max_tokens=4, stop=" the the", logit_bias=demo.force(" the"))
    assert r.choices[0].message.reasoning_content == " the" * 4
    assert r.choices[0].finish_reason == "length"


def test_stop_token(demo, create):
    r = create(max_tokens=6, logit_bias=demo.force(" the"), **PLAIN,
               extra_body={"stop_token_ids": [demo.token(" the")]})
    assert r.choices[0].message.content == "" and r.choices[0].finish_reason == "stop"


def test_logprobs(create):
    r = create(max_tokens=4, logprobs=True, top_logprobs=5, temperature=0, **PLAIN,
               extra_body={"ignore_eos": True})
    items = r.choices[0].logprobs.content
    assert len(items) == 4
    for t in items:
        values = [p.logprob for p in t.top_logprobs]
        assert len(values) == 5 and values == sorted(values, reverse=True) and values[0] <= 0
        assert t.logprob == values[0] and t.token == t.top_logprobs[0].token
        if "\ufffd" not in t.token:
            assert bytes(t.bytes).decode() == t.token


def test_logprobs_are_of_the_model(demo, create):
    """A bias changes the choice, never the reported value."""
    free = create(max_tokens=1, logprobs=True, top_logprobs=3, temperature=0, **PLAIN)
    bias = demo.force(" the")
    held = create(max_tokens=1, logprobs=True, top_logprobs=3, logit_bias=bias, **PLAIN)
    a, b = free.choices[0].logprobs.content[0], held.choices[0].logprobs.content[0]
    assert b.token == " the" and b.logprob < -1
    assert [t.token for t in a.top_logprobs] == [t.token for t in b.top_logprobs]


def test_logprobs_skip_reasoning(create):
    r = create(max_tokens=3, logprobs=True, extra_body={"ignore_eos": True})
    n = r.usage.completion_tokens_details.reasoning_tokens
    assert len(r.choices[0].logprobs.content) <= 3 - n


def test_logprobs_stream(create):
    got = create(max_tokens=4, logprobs=True, stream=True, **PLAIN, temperature=0,
                 extra_body={"ignore_eos": True})
    items = [t for e in got if e.choices[0].logprobs for t in e.choices[0].logprobs.content]
    assert len(items) == 4


def test_choices(demo, create):
    r = create(n=3, max_tokens=3, logit_bias=demo.force(" the"), **PLAIN)
    assert [c.index for c in r.choices] == [0, 1, 2]
    assert {c.message.content for c in r.choices} == {" the" * 3}
    assert r.usage.completion_tokens == 9


def test_choices_differ_and_stream(create):
    text, finish = {}, {}
    for e in create(n=2, max_tokens=8, stream=True, seed=1, temperature=1.5, **PLAIN,
                    extra_body={"ignore_eos": True}):
        c = e.choices[0]
        text[c.index] = text.get(c.index, "") + (c.delta.content or "")
        finish.setdefault(c.index, []).append(c.finish_reason)
    assert text[0] != text[1]
    assert all(f.count("length") == 1 and f[-1] == "length" for f in finish.values())


def content(r):
    return r.choices[0].message.content


def test_seed(create):
    kw = {"max_tokens": 8, "temperature": 1.5, **PLAIN, "extra_body": {"ignore_eos": True}}
    one = content(create(seed=7, **kw))
    assert content(create(seed=7, **kw)) == one
    assert content(create(seed=8, **kw)) != one
    assert content(create(seed=-2**63, **kw)) == content(create(seed=-2**63, **kw))


@pytest.mark.parametrize("kw", [{"temperature": 0}, {"temperature": 1e-6}, {"top_p": 1e-9},
                                {"extra_body": {"top_k": 1}}, {"extra_body": {"min_p": 1}}])
def test_greedy_forms(create, kw):
    extra = kw.pop("extra_body", {})
    kw.setdefault("temperature", 2)
    got = create(max_tokens=8, seed=3, **PLAIN, **kw, extra_body={"ignore_eos": True, **extra})
    best = create(max_tokens=8, temperature=0, **PLAIN, extra_body={"ignore_eos": True})
    assert content(got) == content(best)


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty", "repetition_penalty"])
def test_penalties(demo, create, name):
    """Of some allowed tokens the used ones lose ground."""
    kw = {"max_tokens": 16, "temperature": 0, **PLAIN,
          "logit_bias": demo.force(" the", " of", " and", " to", " in", " that")}
    free = content(create(**kw)).split()
    held = content(create(**kw, extra_body={name: 2})).split()
    assert len(free) == len(held) == 16
    assert free != held and len(set(held)) >= len(set(free))


def test_forbidden_token(demo, create):
    """-100 takes the best token away; the next best comes."""
    kw = {"max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": 2, **PLAIN}
    best, second = create(**kw).choices[0].logprobs.content[0].top_logprobs
    got = create(**kw, logit_bias={str(demo.token(best.token)): -100})
    assert got.choices[0].logprobs.content[0].token == second.token


def test_prefix_cache(demo):
    text = "The same long beginning again and again. " * 60
    first = demo.ask(text, max_tokens=4, temperature=0)
    again = demo.ask(text, max_tokens=4, temperature=0)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256
    assert again["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    assert again["choices"] == first["choices"]


def test_model_names(demo, start_demo):
    with pytest.raises(openai.NotFoundError) as e:
        demo.client().chat.completions.create(model="gpt-4o", messages=HELLO)
    assert e.value.code == "model_not_found" and e.value.param == "model"
    s = start_demo("--server.model_aliases=deepseek-chat local")
    for name in (MODEL, "deepseek-chat", "local"):
        r = s.client().chat.completions.create(model=name, messages=HELLO, max_tokens=1)
        assert r.model == MODEL
    assert [m.id for m in s.client().models.list()] == [MODEL, "deepseek-chat", "local"]
    with pytest.raises(openai.NotFoundError):
        s.client().models.retrieve("gpt-4o")
    assert s.client().models.retrieve("local").root == MODEL


def test_any_model_name(start_demo):
    s = start_demo("--server.model_aliases=*")
    assert s.ask(max_tokens=1, model="whatever")["model"] == MODEL
    assert [m.id for m in s.client().models.list()] == [MODEL]


def test_key(start_demo, tmp_path):
    key = tmp_path / "key"
    key.write_text("sk-0123456789")
    key.chmod(0o600)
    s = start_demo(f"--server.key_file={key}")
    with pytest.raises(openai.AuthenticationError) as e:
        s.client(api_key="sk-other").models.list()
    assert e.value.code == "invalid_api_key"
    assert s.client(api_key="sk-0123456789").models.list().data
    assert s.get("/health").status_code == 200 and s.get("/metrics").status_code == 200


def test_legacy_completions(demo):
    r = demo.client().completions.create(model=MODEL, prompt="Once", max_tokens=3,
                                         logit_bias=demo.force(" the"), logprobs=2)
    assert r.object == "text_completion" and r.id.startswith("cmpl-")
    c = r.choices[0]
    assert c.text == " the" * 3 and c.finish_reason == "length"
    assert c.logprobs.tokens == [" the"] * 3 and c.logprobs.text_offset == [0, 4, 8]
    assert len(c.logprobs.token_logprobs) == 3 and len(c.logprobs.top_logprobs) == 3


def test_legacy_completions_stream(demo):
    got = list(demo.client().completions.create(
        model=MODEL, prompt="Once", max_tokens=3, stream=True, logit_bias=demo.force(" the"),
        stream_options={"include_usage": True}))
    assert "".join(e.choices[0].text for e in got if e.choices) == " the" * 3
    assert [e.choices[0].finish_reason for e in got if e.choices][-1] == "length"
    assert got[-1].choices == [] and got[-1].usage.completion_tokens == 3


def test_errors_reach_the_client(create):
    with pytest.raises(openai.BadRequestError) as e:
        create(temperature=3)
    assert (e.value.param, e.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.BadRequestError) as e:
        create(messages=[{"role": "user", "content": "word " * 5000}], stream=True)
    assert e.value.code == "context_length_exceeded" and "4096" in e.value.message
