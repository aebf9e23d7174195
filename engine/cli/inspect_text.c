/* hx-inspect tokens, prompt. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>

#include <hx/chat.h>
#include <hx/tokenizer.h>

#include "base/file.h"
#include "base/json_read.h"
#include "cli/inspect.h"

#define MAX_TEXT (64u << 20)

/* A tokenizer.json, or the one of a model folder. */
static int open_tokenizer(const char *path, struct hx_tokenizer **out, struct hx_error *err)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return hx_fail_errno(err, errno, "%s", path);
    if (!S_ISDIR(st.st_mode))
        return hx_tokenizer_open(path, out, err);
    char *file = hx_path_join(path, "tokenizer.json");
    if (!file)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_tokenizer_open(file, out, err);
    free(file);
    return r;
}

static int read_stdin(struct hx_buf *text, struct hx_error *err)
{
    char piece[65536];
    size_t n;
    while ((n = fread(piece, 1, sizeof(piece), stdin)) > 0) {
        int r = hx_buf_append(text, piece, n);
        if (r < 0)
            return hx_fail(err, r, "standard input: more than %u bytes, or out of memory",
                           MAX_TEXT);
    }
    return ferror(stdin) ? hx_fail_errno(err, errno, "cannot read standard input") : 0;
}

static int print_ids(const struct hx_ids *ids, struct hx_buf *out)
{
    for (size_t i = 0; i < ids->len; i++)
        hx_buf_printf(out, "%s%d", i ? "," : "", ids->id[i]);
    hx_buf_putc(out, '\n');
    return hx_inspect_print(out);
}

int hx_inspect_tokens(int argc, char **argv)
{
    static const struct option options[] = {
        {"tokenizer", required_argument, NULL, 't'}, {"plain", no_argument, NULL, 'p'}, {0}};
    struct hx_encode_options opt = {.parse_special = true};
    struct hx_buf text = HX_BUF_INIT(MAX_TEXT), out = HX_BUF_INIT(1u << 30);
    struct hx_tokenizer *tok = NULL;
    struct hx_ids ids = {0};
    struct hx_error err;
    const char *path = NULL;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == '?')
            return EX_USAGE;
        if (c == 't')
            path = optarg;
        else
            opt.parse_special = false;
    }
    if (!path || argc - optind != 1)
        return hx_inspect_usage("tokens: expected --tokenizer and one text");
    int r = open_tokenizer(path, &tok, &err);
    if (r == 0 && strcmp(argv[optind], "-") == 0)
        r = read_stdin(&text, &err);
    else if (r == 0 && hx_buf_puts(&text, argv[optind]) < 0)
        r = hx_fail(&err, -ENOMEM, "out of memory");
    if (r == 0)
        r = hx_tokenizer_encode(tok, (const char *)text.data, text.len, &opt, &ids, &err);
    int status = r < 0 ? hx_inspect_status(r, &err) : print_ids(&ids, &out);
    hx_ids_done(&ids);
    hx_tokenizer_close(tok);
    hx_buf_done(&text);
    return status;
}

static int render(const char *path, struct hx_chat *chat, struct hx_error *err)
{
    char *json;
    size_t len;
    struct hx_json *doc = NULL;
    int r = hx_file_read(path, MAX_TEXT, &json, &len, err);
    if (r < 0)
        return r;
    r = hx_json_parse(json, len, &HX_JSON_LIMITS_DEFAULT, &doc, err);
    if (r == 0)
        r = hx_chat_from_request(hx_json_root(doc), HX_EFFORT_RELEASE, chat, err);
    if (r < 0)
        hx_wrap(err, r, "%s", path);
    hx_json_free(doc);
    free(json);
    return r;
}

int hx_inspect_prompt(int argc, char **argv)
{
    struct hx_encode_options opt = {0};
    struct hx_buf out = HX_BUF_INIT(1u << 30);
    struct hx_chat chat = {0};
    struct hx_tokenizer *tok = NULL;
    struct hx_ids ids = {0};
    struct hx_error err;
    if (argc < 2 || argc > 3)
        return hx_inspect_usage("prompt: expected an optional model folder and a request file");
    int r = render(argv[argc - 1], &chat, &err);
    if (r < 0)
        return hx_inspect_status(r, &err);
    if (argc == 3)
        r = open_tokenizer(argv[1], &tok, &err);
    if (r == 0 && tok)
        r = hx_prompt_encode(&chat.prompt, tok, &opt, &ids, &err);
    int status;
    if (r < 0) {
        status = hx_inspect_status(r, &err);
    } else {
        hx_buf_append(&out, chat.prompt.text.data, chat.prompt.text.len);
        hx_buf_putc(&out, '\n');
        status = tok ? print_ids(&ids, &out) : hx_inspect_print(&out);
    }
    hx_ids_done(&ids);
    hx_tokenizer_close(tok);
    hx_chat_done(&chat);
    return status;
}
