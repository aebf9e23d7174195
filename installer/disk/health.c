#include "disk/health.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/file.h"

#define RECORD    "/var/lib/hx170/check/last-good"
#define GIVEN_UP  "/var/lib/hx170/check/given-up"
#define BOX_CONF  "/var/lib/hx170/config/box.conf"
#define RENDERED  "/run/hx170/hostname"
#define TEXT_MAX  (4u << 20)
#define SSH_PORT  22
#define ANSWER_MS 3000
#define CARDS_MAX 64

static bool var_is_mounted(const struct hx_root *root)
{
    char *text;
    size_t len;
    if (hx_root_read(root, "/proc/self/mountinfo", TEXT_MAX, &text, &len, NULL) < 0)
        return false;
    bool found = false;
    for (char *line = text; *line && !found;) {
        size_t n = strcspn(line, "\n");
        bool end = line[n] == '\0';
        line[n] = '\0';
        const char *type = strstr(line, " - ");
        found = strstr(line, " /var ") && type && strncmp(type + 3, "ext4 ", 5) == 0;
        line += n + !end;
    }
    free(text);
    return found;
}

/* Rows of /proc/net/tcp: "  0: 00000000:0016 00000000:0000 0A ..."; 0A is LISTEN. */
static bool listens(const struct hx_root *root, const char *file, unsigned port)
{
    char *text, wanted[8];
    size_t len;
    bool found = false;
    snprintf(wanted, sizeof(wanted), ":%04X ", port);
    if (hx_root_read(root, file, TEXT_MAX, &text, &len, NULL) < 0)
        return false;
    for (char *line = text; *line && !found;) {
        size_t n = strcspn(line, "\n");
        bool end = line[n] == '\0';
        line[n] = '\0';
        char *local = strstr(line, wanted);
        /* Behind the port: remote address, its port, state. */
        char *state = local ? strchr(local + 6, ' ') : NULL;
        found = state && strncmp(state, " 0A ", 4) == 0;
        line += n + !end;
    }
    free(text);
    return found;
}

static int count_cards(const struct hx_root *root)
{
    struct hx_names names;
    if (hx_root_list(root, "/proc/driver/nvidia/gpus", &names, NULL) < 0)
        return 0;
    int n = names.n < CARDS_MAX ? (int)names.n : CARDS_MAX;
    hx_names_done(&names);
    return n;
}

static bool ask_engine(unsigned port)
{
    static const char request[] = "GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n";
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {ANSWER_MS / 1000, 0};
    char answer[16] = "";
    size_t have = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    bool ok = connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 &&
              send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) == (ssize_t)sizeof(request) - 1;
    while (ok && have < 12) {
        ssize_t n = recv(fd, answer + have, 12 - have, 0);
        ok = n > 0;
        have += ok ? (size_t)n : 0;
    }
    close(fd);
    return ok && strncmp(answer, "HTTP/1.", 7) == 0 && strcmp(answer + 8, " 200") == 0;
}

void hx_health_look(const struct hx_root *root, unsigned port, struct hx_health *out)
{
    out->state = var_is_mounted(root);
    out->ssh =
        listens(root, "/proc/net/tcp", SSH_PORT) || listens(root, "/proc/net/tcp6", SSH_PORT);
    out->config = !hx_root_exists(root, BOX_CONF) || hx_root_exists(root, RENDERED);
    out->n_cards = count_cards(root);
    out->engine = ask_engine(port);
}

int hx_health_record_read(const struct hx_root *root, struct hx_health_record *out,
                          struct hx_error *err)
{
    char text[64];
    int r = hx_root_text(root, RECORD, text, sizeof(text));
    *out = (struct hx_health_record){0};
    if (r == -ENOENT)
        return 0;
    int n_cards = 0;
    char engine[4] = "";
    if (r < 0 || sscanf(text, "cards = %2d engine = %3s", &n_cards, engine) != 2 || n_cards < 0 ||
        n_cards > CARDS_MAX)
        return hx_fail(err, -EINVAL, RECORD ": is damaged");
    out->n_cards = n_cards;
    out->engine = strcmp(engine, "yes") == 0;
    return 0;
}

int hx_health_record_write(const struct hx_root *root, const struct hx_health *now,
                           struct hx_error *err)
{
    char path[HX_ROOT_PATH], text[64];
    if (hx_root_outside(root, RECORD, path) < 0)
        return hx_fail(err, -ENOENT, RECORD ": its folder is missing");
    int n = snprintf(text, sizeof(text), "cards = %d\nengine = %s\n", now->n_cards,
                     now->engine ? "yes" : "no");
    return hx_file_replace(path, text, (size_t)n, err);
}

int hx_health_give_up(const struct hx_root *root, const char *version, const char *reason,
                      struct hx_error *err)
{
    char path[HX_ROOT_PATH], text[256];
    if (hx_root_outside(root, GIVEN_UP, path) < 0)
        return hx_fail(err, -ENOENT, GIVEN_UP ": its folder is missing");
    int n = snprintf(text, sizeof(text), "%.40s: %.200s\n", version, reason);
    return hx_file_replace(path, text, (size_t)n, err);
}

bool hx_health_given_up(const struct hx_root *root, const char *version, char *reason, size_t size)
{
    char text[256];
    size_t n = strlen(version);
    if (hx_root_text(root, GIVEN_UP, text, sizeof(text)) < 0 || strncmp(text, version, n) != 0 ||
        strncmp(text + n, ": ", 2) != 0)
        return false;
    snprintf(reason, size, "%.*s", (int)strcspn(text + n + 2, "\n"), text + n + 2);
    return true;
}

const char *hx_health_missing(const struct hx_health *now, const struct hx_health_record *before)
{
    if (!now->state)
        return "the state partition is not mounted";
    if (!now->ssh)
        return "SSH does not listen";
    if (!now->config)
        return "the configuration was not rendered";
    if (now->n_cards < before->n_cards)
        return "fewer cards than before the update";
    if (before->engine && !now->engine)
        return "the engine does not answer, as it did before the update";
    return NULL;
}
