"""The official client against a box: streamed answers, each checked. Prints one line of JSON.

    client.py URL N    N requests, the first of them twice: an answer at temperature 0 has to come out alike
"""
import json
import sys
import time

import openai

QUESTION = "Which rivers meet at Passau?"


def ask(client, model, n):
    """One streamed chat answer: (text, seconds to its first piece, seconds)."""
    start = time.monotonic()
    first, pieces, reason, usage = None, [], None, None
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": f"{QUESTION} ({n})" if n else QUESTION}], stream=True,
        max_tokens=8, temperature=0, stream_options={"include_usage": True},
        extra_body={"reasoning_effort": "none", "ignore_eos": True})
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            if choice.delta.content:
                first = first or time.monotonic() - start
                pieces.append(choice.delta.content)
    assert reason == "length", reason
    assert usage and usage.completion_tokens == 8, usage
    assert len(pieces) > 1, f"{len(pieces)} pieces: nothing was streamed"
    return "".join(pieces), first, time.monotonic() - start


def main():
    url, n = sys.argv[1], int(sys.argv[2])
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", timeout=300, max_retries=0)
    models = [m.id for m in client.models.list()]
    assert len(models) == 1, models
    answers = [ask(client, models[0], i) for i in range(n)]
    again = ask(client, models[0], 0)
    assert again[0] == answers[0][0], (again[0], answers[0][0])
    seconds = sorted(a[2] for a in answers)
    print(json.dumps({"model": models[0], "n": n, "first_s": round(answers[0][1], 2),
                      "median_s": round(seconds[n // 2], 2), "text": answers[0][0]}))


if __name__ == "__main__":
    main()
