/* Prompt segments, their token ids, and the tokens that end a turn. */
#include "text/prompt.h"

#include <stdlib.h>
#include <string.h>

void hx_prompt_init(struct hx_prompt *p)
{
    *p = (struct hx_prompt){.text = HX_BUF_INIT(HX_PROMPT_MAX)};
}

void hx_prompt_done(struct hx_prompt *p)
{
    hx_buf_done(&p->text);
    free(p->segment);
    p->segment = NULL;
    p->n_segments = p->cap_segments = 0;
}

/* Covers the text from `from` to the end with a segment; neighbouring plain stretches are one. */
static void cover(struct hx_prompt *p, size_t from, bool special)
{
    size_t len = p->text.len - from;
    if (p->text.failed || len == 0)
        return;
    struct hx_prompt_segment *last = p->n_segments ? &p->segment[p->n_segments - 1] : NULL;
    if (last && !last->special && !special) {
        last->len += (uint32_t)len;
        return;
    }
    if (p->n_segments == p->cap_segments) {
        size_t cap = p->cap_segments ? p->cap_segments * 2 : 32;
        struct hx_prompt_segment *segment = realloc(p->segment, cap * sizeof(*segment));
        if (!segment) {
            p->text.failed = true;
            return;
        }
        p->segment = segment;
        p->cap_segments = cap;
    }
    p->segment[p->n_segments++] = (struct hx_prompt_segment){
        .offset = (uint32_t)from, .len = (uint32_t)len, .special = special};
}

void hx_prompt_text(struct hx_prompt *p, const void *s, size_t len)
{
    size_t from = p->text.len;
    hx_buf_append(&p->text, s, len);
    cover(p, from, false);
}

void hx_prompt_puts(struct hx_prompt *p, const char *s)
{
    hx_prompt_text(p, s, strlen(s));
}

void hx_prompt_token(struct hx_prompt *p, const char *spelling)
{
    size_t from = p->text.len;
    hx_buf_puts(&p->text, spelling);
    cover(p, from, true);
}

void hx_prompt_plain_since(struct hx_prompt *p, size_t from)
{
    cover(p, from, false);
}

void hx_prompt_template(struct hx_prompt *p, const char *s)
{
    static const char *const token[] = {HX_T_THINK, HX_T_THINK_END, HX_T_DSML};
    const char *plain = s;
    while (*s) {
        const char *hit = NULL;
        for (size_t i = 0; i < sizeof(token) / sizeof(token[0]) && !hit; i++)
            hit = strncmp(s, token[i], strlen(token[i])) == 0 ? token[i] : NULL;
        if (!hit) {
            s++;
            continue;
        }
        hx_prompt_text(p, plain, (size_t)(s - plain));
        hx_prompt_token(p, hit);
        s += strlen(hit);
        plain = s;
    }
    hx_prompt_puts(p, plain);
}

int hx_prompt_check(const struct hx_prompt *p, struct hx_error *err)
{
    if (!p->text.failed)
        return 0;
    if (p->text.len > HX_PROMPT_MAX / 2)
        return hx_fail_param(err, -EMSGSIZE, "messages", "invalid_value",
                             "the prompt is longer than %zu MiB; send less", HX_PROMPT_MAX >> 20);
    return hx_fail(err, -ENOMEM, "out of memory for the prompt");
}

static int encode_token(const struct hx_tokenizer *t, const char *s, size_t len, struct hx_ids *out,
                        struct hx_error *err)
{
    char spelling[64];
    if (len >= sizeof(spelling))
        return hx_fail(err, -EINVAL, "template token of %zu bytes", len);
    memcpy(spelling, s, len);
    spelling[len] = '\0';
    int32_t id = hx_tokenizer_special(t, spelling);
    if (id < 0 && strcmp(spelling, HX_T_IMAGE) == 0)
        id = hx_tokenizer_special(t, "<｜image｜>"); /* the production kit's spelling */
    if (id < 0)
        return hx_fail(err, -EINVAL, "the tokenizer has no token '%s', which the template needs",
                       spelling);
    if (hx_ids_push(out, id) < 0)
        return hx_fail(err, -ENOMEM, "out of memory for the prompt's ids");
    return 0;
}

int hx_prompt_encode(const struct hx_prompt *p, const struct hx_tokenizer *t,
                     const struct hx_encode_options *opt, struct hx_ids *out, struct hx_error *err)
{
    struct hx_encode_options plain = opt ? *opt : (struct hx_encode_options){0};
    plain.parse_special = false;
    size_t before = out->len;
    for (size_t i = 0; i < p->n_segments; i++) {
        const struct hx_prompt_segment *s = &p->segment[i];
        const char *text = (const char *)p->text.data + s->offset;
        int r = s->special ? encode_token(t, text, s->len, out, err)
                           : hx_tokenizer_encode(t, text, s->len, &plain, out, err);
        if (r < 0) {
            out->len = before;
            return r;
        }
    }
    return 0;
}

size_t hx_chat_end_tokens(const struct hx_tokenizer *t, int32_t *ids, size_t cap)
{
    static const char *const spelling[] = {HX_T_EOS,      HX_T_USER, HX_T_SYSTEM, HX_T_ASSISTANT,
                                           HX_T_REMINDER, HX_T_BOS,  HX_T_PAD,    HX_T_EOT};
    size_t n = 0;
    for (size_t i = 0; i < sizeof(spelling) / sizeof(spelling[0]); i++) {
        int32_t id = hx_tokenizer_special(t, spelling[i]);
        if (id >= 0 && n < cap)
            ids[n++] = id;
    }
    return n;
}
