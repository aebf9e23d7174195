/* hx-fetch plan: what would be downloaded, from where and to where. Asks no server unless it is to
 * measure. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "base/json_write.h"
#include "base/sha256.h"
#include "fetch/commands.h"
#include "fetch/probe.h"

static double gib(uint64_t n)
{
    return (double)n / 0x1p30;
}

static void put_uint(struct hx_json_writer *w, const char *key, uint64_t v)
{
    hx_jw_key(w, key);
    hx_jw_uint(w, v);
}

static void put_text(struct hx_json_writer *w, const char *key, const char *v)
{
    hx_jw_key(w, key);
    if (v)
        hx_jw_str(w, v);
    else
        hx_jw_null(w);
}

static void put_file(struct hx_json_writer *w, const struct hx_plan_file *p)
{
    hx_jw_object(w);
    put_text(w, "out", p->lock->out);
    put_text(w, "group", hx_lock_group_name(p->lock->group));
    put_text(w, "source", p->source->id);
    put_text(w, "path", p->lock->path);
    put_text(w, "mode", p->lock->mode == HX_LOCK_CUT ? "cut" : "whole");
    put_uint(w, "source_bytes", p->lock->size);
    put_uint(w, "bytes", p->out_bytes);
    put_uint(w, "wanted_bytes", p->wanted_bytes);
    put_uint(w, "fetched_bytes", p->fetched_bytes);
    put_uint(w, "requests", p->n_chunks);
    hx_jw_end_object(w);
}

static void print_probe_json(const struct hx_probe *probe, struct hx_json_writer *w)
{
    hx_jw_key(w, "probe");
    hx_jw_object(w);
    hx_jw_key(w, "disk_bytes_per_s");
    hx_jw_finite(w, probe->disk_rate);
    hx_jw_key(w, "sources");
    hx_jw_array(w);
    for (size_t i = 0; i < probe->n_sources; i++) {
        hx_jw_object(w);
        put_text(w, "id", probe->source[i].source->id);
        hx_jw_key(w, "bytes_per_s");
        hx_jw_finite(w, probe->source[i].rate);
        hx_jw_key(w, "hours");
        hx_jw_finite(w, probe->source[i].hours);
        hx_jw_end_object(w);
    }
    hx_jw_end_array(w);
    hx_jw_end_object(w);
}

static void print_probe(const struct hx_probe *probe, struct hx_buf *b)
{
    hx_buf_printf(b, "disk: writes %.0f MB/s%s\n", probe->disk_rate / 1e6,
                  probe->disk_rate < HX_PROBE_SLOW_DISK ? ", which is slow for this model" : "");
    for (size_t i = 0; i < probe->n_sources; i++)
        hx_buf_printf(b, "%s: one connection gives %.1f MB/s at first; about %.1f hours or less\n",
                      probe->source[i].source->repo, probe->source[i].rate / 1e6,
                      probe->source[i].hours);
}

static void print_json(const struct hx_lock *lock, const struct hx_plan *plan,
                       const struct hx_disk_report *disks, const struct hx_probe *probe,
                       struct hx_json_writer *w)
{
    char hex[HX_SHA256_HEX];
    hx_jw_object(w);
    put_text(w, "model", lock->model);
    hx_sha256_to_hex(lock->sha256, hex);
    put_text(w, "lock_sha256", hex);
    hx_sha256_to_hex(plan->sha256, hex);
    put_text(w, "plan_sha256", hex);
    hx_jw_key(w, "verifiable");
    hx_jw_bool(w, lock->complete);
    put_uint(w, "wanted_bytes", plan->wanted_bytes);
    put_uint(w, "fetched_bytes", plan->fetched_bytes);
    put_uint(w, "wasted_bytes", plan->fetched_bytes - plan->wanted_bytes);
    hx_jw_key(w, "sources");
    hx_jw_array(w);
    for (size_t i = 0; i < lock->n_sources; i++) {
        hx_jw_object(w);
        put_text(w, "id", lock->sources[i].id);
        put_text(w, "repo", lock->sources[i].repo);
        put_text(w, "commit", lock->sources[i].commit);
        put_text(w, "licence", lock->sources[i].licence);
        hx_jw_end_object(w);
    }
    hx_jw_end_array(w);
    hx_jw_key(w, "disks");
    hx_jw_array(w);
    for (size_t i = 0; i < disks->n_places; i++) {
        const struct hx_disk_place *d = &disks->place[i];
        hx_jw_object(w);
        put_text(w, "dir", d->dir);
        put_text(w, "kind", d->kind);
        put_uint(w, "missing_data", d->data);
        put_uint(w, "needed", d->need);
        put_uint(w, "reserve", d->reserve);
        put_uint(w, "free", d->free);
        hx_jw_end_object(w);
    }
    hx_jw_end_array(w);
    if (probe)
        print_probe_json(probe, w);
    hx_jw_key(w, "files");
    hx_jw_array(w);
    for (size_t i = 0; i < plan->n_files; i++)
        put_file(w, &plan->files[i]);
    hx_jw_end_array(w);
    hx_jw_end_object(w);
}

static void print_text(const struct hx_lock *lock, const struct hx_plan *plan,
                       const struct hx_disk_report *disks, struct hx_buf *b)
{
    uint64_t bytes[HX_GROUP_MAX] = {0}, fetched[HX_GROUP_MAX] = {0};
    unsigned files[HX_GROUP_MAX] = {0};
    size_t requests = 0;
    hx_buf_printf(b, "%s\n", lock->model);
    for (size_t i = 0; i < lock->n_sources; i++) {
        const struct hx_lock_source *s = &lock->sources[i];
        hx_buf_printf(b, "  from %s at %s, licence %s\n", s->repo, s->commit,
                      s->licence ? s->licence : "not stated");
    }
    hx_buf_printf(b, "\n%-40s %-7s %14s %14s %9s\n", "file", "group", "bytes", "download",
                  "requests");
    for (size_t i = 0; i < plan->n_files; i++) {
        const struct hx_plan_file *p = &plan->files[i];
        hx_buf_printf(b, "%-40s %-7s %14llu %14llu %9zu\n", p->lock->out,
                      hx_lock_group_name(p->lock->group), (unsigned long long)p->out_bytes,
                      (unsigned long long)p->fetched_bytes, p->n_chunks);
        bytes[p->lock->group] += p->out_bytes;
        fetched[p->lock->group] += p->fetched_bytes;
        files[p->lock->group]++;
        requests += p->n_chunks;
    }
    hx_buf_puts(b, "\n");
    for (int g = 0; g < HX_GROUP_MAX; g++) {
        if (files[g])
            hx_buf_printf(b, "%-8s %4u files %10.3f GiB, download %10.3f GiB\n",
                          hx_lock_group_name((enum hx_lock_group)g), files[g], gib(bytes[g]),
                          gib(fetched[g]));
    }
    hx_buf_printf(b,
                  "in all   %4zu files %10.3f GiB, download %10.3f GiB (%llu bytes) in %zu "
                  "requests, %llu bytes of them thrown away\n",
                  plan->n_files, gib(plan->wanted_bytes), gib(plan->fetched_bytes),
                  (unsigned long long)plan->fetched_bytes, requests,
                  (unsigned long long)(plan->fetched_bytes - plan->wanted_bytes));
    for (size_t i = 0; i < disks->n_places; i++) {
        const struct hx_disk_place *d = &disks->place[i];
        hx_buf_printf(b, "%s (%s): needs %.3f GiB, %.3f GiB stay free, %.3f GiB are free\n", d->dir,
                      d->kind, gib(d->need), gib(d->reserve), gib(d->free));
    }
    if (!lock->complete)
        hx_buf_puts(b, "Not every hash is known in advance: the result will be marked \"not "
                       "independently verified\".\n");
}

/* "4G": size of the disk probe. */
static int parse_probe(const char *text, uint64_t *out)
{
    char *end;
    if (strspn(text, "0123456789") == 0 || strlen(text) > 9)
        return -EINVAL;
    unsigned long long v = strtoull(text, &end, 10);
    unsigned shift = *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    *out = v << shift;
    if (shift)
        end++;
    return *end == '\0' && *out >= 1u << 20 && *out <= 64ull << 30 ? 0 : -EINVAL;
}

static int measure(struct hx_fetch_cli *cli, const struct hx_plan *plan, uint64_t disk_bytes,
                   struct hx_probe *probe, struct hx_error *err)
{
    int r = hx_probe_disk(cli->conf.models, disk_bytes, &probe->disk_rate, err);
    return r < 0 ? r : hx_probe_sources(&cli->conf, plan, probe, err);
}

int hx_fetch_cmd_plan(struct hx_fetch_cli *cli)
{
    struct hx_error err = {0}, full = {0};
    struct hx_lock *lock = NULL;
    struct hx_plan *plan = NULL;
    struct hx_buf out = HX_BUF_INIT(64u << 20);
    struct hx_disk_report disks = {0};
    struct hx_probe probe = {0};
    const char *size = "4G";
    uint64_t disk_bytes = 0;
    bool measured = hx_fetch_take_flag(cli, "--probe");
    if (hx_fetch_take_value(cli, "--probe-bytes", &size) < 0)
        return EX_USAGE;
    if (parse_probe(size, &disk_bytes) < 0)
        return hx_fetch_usage("--probe-bytes: expected 1M to 64G, found '%.20s'", size);
    if (cli->n_args > 0)
        return hx_fetch_usage("plan: '%s' is not understood", cli->args[0]);
    int r = hx_fetch_load(cli, &lock, &plan, &err), room = 0;
    if (r == 0)
        room = hx_fetch_check_disks(cli, plan, &disks, &full);
    if (r == 0 && room == 0 && measured)
        r = measure(cli, plan, disk_bytes, &probe, &err);
    measured &= room == 0;
    if (r == 0 && cli->json) {
        struct hx_json_writer w;
        hx_jw_init(&w, &out, false);
        print_json(lock, plan, &disks, measured ? &probe : NULL, &w);
        hx_buf_putc(&out, '\n');
    } else if (r == 0) {
        print_text(lock, plan, &disks, &out);
        if (measured)
            print_probe(&probe, &out);
    }
    if (r == 0)
        r = hx_fetch_print(&out, &err);
    hx_buf_done(&out);
    hx_plan_free(plan);
    hx_lock_free(lock);
    return r < 0 ? hx_fetch_status(r, &err) : hx_fetch_status(room, &full);
}
