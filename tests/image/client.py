"""The official client against a box: streamed answers, each checked. Prints one line of JSON.

    client.py URL N REFERENCE    N requests, four at a time; each answer has to be, letter by letter, the one of the engine at
                                 REFERENCE with the same model: the CPU back end computes the same bits everywhere
"""
import concurrent.futures
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


def connect(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", timeout=300, max_retries=0)
    models = [m.id for m in client.models.list()]
    assert len(models) == 1, models
    return client, models[0]


def main():
    url, n, reference = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    box, host = connect(url), connect(reference)

    def compare(i):
        want, got = ask(*host, i), ask(*box, i)
        assert got[0] == want[0], (i, got[0], want[0])
        return got

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(compare, range(n)))
    text = answers[-1][0]
    first, seconds = [a[1] for a in answers], [a[2] for a in answers]
    print(json.dumps({"model": box[1], "n": n, "first_piece_s": round(sorted(first)[n // 2], 2),
                      "answer_s": round(sorted(seconds)[n // 2], 2), "text": text}))


if __name__ == "__main__":
    main()
