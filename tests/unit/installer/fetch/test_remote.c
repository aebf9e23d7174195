/* Health of hosts, age of links, choice of the endpoint. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fetch/remote.h"

static char hub_name[] = "hub", mirror_name[] = "mirror", plain_name[] = "plain";
static char hub_url[] = "https://hub.example", mirror_url[] = "http://mirror.example:81/m",
            plain_url[] = "http://127.0.0.1:82";
static const struct hx_endpoint endpoints[] = {{hub_name, hub_url, HX_ENDPOINT_HUB},
                                               {mirror_name, mirror_url, HX_ENDPOINT_HUB},
                                               {plain_name, plain_url, HX_ENDPOINT_PLAIN}};
#define ALL 7u

static struct hx_remotes r;
static struct hx_remote_file *f;

static int setup(void **state)
{
    (void)state;
    if (hx_remotes_init(&r, endpoints, 3, 600, NULL) < 0)
        return -1;
    f = hx_remotes_file(&r, "o/n", "c0ffee", "a b.bin");
    return f ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    hx_remotes_done(&r);
    return 0;
}

static int choose(uint32_t allowed, int avoid, double now, double *when)
{
    struct hx_error err = {0};
    int host;
    *when = 0;
    return hx_remotes_choose(&r, f, allowed, avoid, now, when, &host, &err);
}

static void addresses_of_both_kinds(void **state)
{
    (void)state;
    char url[HX_URL_MAX];
    assert_int_equal(hx_remotes_url(&endpoints[0], f, url), 0);
    assert_string_equal(url, "https://hub.example/o/n/resolve/c0ffee/a%20b.bin");
    assert_int_equal(hx_remotes_url(&endpoints[2], f, url), 0);
    assert_string_equal(url, "http://127.0.0.1:82/o/n/a%20b.bin");
}

static void the_token_goes_to_hubs_over_tls_or_here(void **state)
{
    (void)state;
    assert_true(r.hosts[r.endpoint_hosts[0]].takes_token);
    assert_false(r.hosts[r.endpoint_hosts[1]].takes_token); /* clear text over a network */
    assert_false(r.hosts[r.endpoint_hosts[2]].takes_token); /* no hub */
    int cdn = hx_remotes_host(&r, "https://cdn.example/x");
    assert_false(r.hosts[cdn].takes_token);
    /* Another port is another host. */
    assert_false(r.hosts[hx_remotes_host(&r, "https://hub.example:8443/")].takes_token);
}

static void one_entry_for_each_file_and_host(void **state)
{
    (void)state;
    assert_ptr_equal(hx_remotes_file(&r, "o/n", "c0ffee", "a b.bin"), f);
    assert_ptr_not_equal(hx_remotes_file(&r, "o/n", "c0ffef", "a b.bin"), f);
    int a = hx_remotes_host(&r, "https://CDN.example/x?y");
    assert_int_equal(hx_remotes_host(&r, "https://cdn.example:443/z"), a);
    assert_int_equal(hx_remotes_host(&r, "nonsense"), -EINVAL);
}

static void too_many_hosts(void **state)
{
    (void)state;
    char url[64];
    int h = 0;
    for (int i = 0; i < HX_MAX_HOSTS + 1; i++) {
        snprintf(url, sizeof(url), "https://edge%d.example/", i);
        h = hx_remotes_host(&r, url);
    }
    assert_int_equal(h, -ENOSPC);
}

static void in_order_of_preference(void **state)
{
    (void)state;
    double when;
    assert_int_equal(choose(ALL, -1, 0, &when), 0);
    assert_int_equal(choose(6, -1, 0, &when), 1);
}

/* Equal mirrors share; one that gives a tenth gets a connection when the other has ten. */
static void spread_by_what_they_give(void **state)
{
    (void)state;
    double when;
    const int order[] = {0, 1, 2, 0, 1, 2};
    for (int i = 0; i < 6; i++) {
        int e = choose(ALL, -1, 0, &when);
        assert_int_equal(e, order[i]);
        hx_remotes_began(&r, e);
    }
    /* A hundred bytes say nothing about speed, ten seconds do. */
    hx_remotes_ended(&r, 0, 100, 1);
    hx_remotes_ended(&r, 0, 100, 1);
    assert_true(r.loads[0].speed == 0 && r.loads[0].active == 0);
    hx_remotes_ended(&r, 1, 50 << 20, 1);
    hx_remotes_ended(&r, 1, 50 << 20, 1);
    hx_remotes_ended(&r, 2, 100, 10);
    hx_remotes_ended(&r, 2, 100, 10);
    assert_true(r.loads[1].speed > 50e6 && r.loads[2].speed < 100);
    r.loads[0].speed = r.loads[1].speed / 10;
    int n[3] = {0};
    for (int i = 0; i < 22; i++) {
        int e = choose(ALL, -1, 0, &when);
        n[e]++;
        hx_remotes_began(&r, e);
    }
    assert_int_equal(n[0], 2);
    assert_int_equal(n[1], 20);
    assert_int_equal(n[2], 0);
}

static void what_is_to_be_had_elsewhere(void **state)
{
    (void)state;
    r.loads[0].speed = 1000;
    r.loads[1].speed = 900;
    r.loads[1].active = 2;
    assert_true(hx_remotes_elsewhere(&r, f, ALL, 0, 5) == 300);
    assert_true(hx_remotes_elsewhere(&r, f, ALL, 2, 5) == 1000);
    assert_true(hx_remotes_elsewhere(&r, f, 1, 0, 5) == 0);
    assert_true(hx_remotes_elsewhere(&r, f, 5, 0, 5) == 0); /* nothing is known of the third */
    hx_host_wait(&r.hosts[r.endpoint_hosts[0]], HX_BUCKET_FILES, 10);
    assert_true(hx_remotes_elsewhere(&r, f, ALL, 2, 5) == 300);
    hx_host_out(&r.hosts[r.endpoint_hosts[1]], -EPROTO, "x");
    assert_true(hx_remotes_elsewhere(&r, f, ALL, 2, 5) == 0);
}

static void a_failing_host_comes_last_for_a_while(void **state)
{
    (void)state;
    double when;
    for (int i = 0; i < 3; i++)
        hx_host_failed(&r.hosts[r.endpoint_hosts[0]], 100);
    assert_int_equal(choose(ALL, -1, 101, &when), 1);
    assert_int_equal(choose(1, -1, 101, &when), 0);
    assert_int_equal(choose(ALL, -1, 100 + 601, &when), 0);
    hx_host_failed(&r.hosts[r.endpoint_hosts[0]], 800);
    hx_host_good(&r.hosts[r.endpoint_hosts[0]]);
    assert_int_equal(choose(ALL, -1, 801, &when), 0);
}

static void three_protocol_errors_in_a_row(void **state)
{
    (void)state;
    struct hx_host *h = &r.hosts[r.endpoint_hosts[0]];
    double when;
    assert_false(hx_host_protocol_error(h, 10, 600, "x"));
    assert_false(hx_host_protocol_error(h, 10, 600, "x"));
    hx_host_good(h);
    assert_false(hx_host_protocol_error(h, 10, 600, "x"));
    assert_false(hx_host_protocol_error(h, 10, 600, "x"));
    assert_true(hx_host_protocol_error(h, 10, 600, "x"));
    assert_int_equal(choose(1, -1, 11, &when), -EAGAIN);
    assert_int_equal((int)when, 610);
    assert_int_equal(choose(ALL, -1, 11, &when), 1);
    assert_int_equal(choose(1, -1, 611, &when), 0);
}

static void out_for_the_run(void **state)
{
    (void)state;
    double when;
    struct hx_host *h = &r.hosts[r.endpoint_hosts[0]];
    assert_false(hx_host_ignored_range(h));
    assert_true(hx_host_ignored_range(h));
    assert_false(hx_host_ignored_range(h)); /* said once */
    assert_int_equal(choose(1, -1, 1e6, &when), -EPROTO);
    assert_int_equal(choose(ALL, -1, 1e6, &when), 1);
    h = &r.hosts[r.endpoint_hosts[1]];
    assert_false(hx_host_wrong_bytes(h, "a"));
    assert_true(hx_host_wrong_bytes(h, "b"));
    assert_int_equal(choose(2, -1, 0, &when), -EBADMSG);
}

static void a_refused_link_leaves_the_others(void **state)
{
    (void)state;
    double when;
    struct hx_error err = {0};
    int host;
    hx_link_refuse(&f->links[0], -ENOENT, "404: gone");
    assert_int_equal(choose(ALL, -1, 0, &when), 1);
    assert_int_equal(hx_remotes_choose(&r, f, 1, -1, 0, &when, &host, &err), -ENOENT);
    assert_non_null(strstr(err.text, "404: gone"));
    assert_non_null(strstr(err.text, "hub.example"));
}

static void a_server_that_asks_to_wait(void **state)
{
    (void)state;
    double when;
    int cdn = hx_remotes_host(&r, "https://cdn.example/");
    hx_host_wait(&r.hosts[r.endpoint_hosts[0]], HX_BUCKET_FILES, 50);
    hx_host_wait(&r.hosts[r.endpoint_hosts[0]], HX_BUCKET_FILES, 40); /* the longer one counts */
    assert_int_equal(choose(1, -1, 10, &when), -EAGAIN);
    assert_int_equal((int)when, 50);
    /* A link that is known needs no resolver. */
    assert_int_equal(hx_link_signed(&f->links[0], "https://cdn.example/x?s", cdn, 0, 10), 0);
    assert_int_equal(choose(1, -1, 10, &when), 0);
    hx_host_wait(&r.hosts[cdn], HX_BUCKET_API, 99); /* another bucket */
    assert_int_equal(choose(1, -1, 10, &when), 0);
    hx_host_wait(&r.hosts[cdn], HX_BUCKET_FILES, 70);
    assert_int_equal(choose(1, -1, 10, &when), -EAGAIN);
    assert_int_equal((int)when, 70);
}

static void links_are_renewed_in_time(void **state)
{
    (void)state;
    double when;
    int cdn = hx_remotes_host(&r, "https://cdn.example/");
    struct hx_link *l = &f->links[0];
    assert_int_equal(hx_link_signed(l, "https://cdn.example/x?s", cdn, 1000, 0), 0);
    unsigned generation = l->generation;
    assert_int_equal(choose(1, -1, 799, &when), 0);
    assert_int_equal(l->state, HX_LINK_SIGNED);
    assert_int_equal(choose(1, -1, 801, &when), 0);
    assert_int_equal(l->state, HX_LINK_UNKNOWN);
    assert_true(l->generation != generation);
    /* Not told: 45 minutes. Told too much: a week at most. */
    hx_link_signed(l, "https://cdn.example/x?s", cdn, 0, 0);
    assert_int_equal((int)l->refresh_at, 45 * 60);
    hx_link_signed(l, "https://cdn.example/x?s", cdn, 1e12, 0);
    assert_int_equal((int)l->refresh_at, 7 * 86400 * 8 / 10);
}

static void an_edge_that_is_out_gets_a_new_link(void **state)
{
    (void)state;
    double when;
    int cdn = hx_remotes_host(&r, "https://cdn.example/");
    hx_link_signed(&f->links[0], "https://cdn.example/x?s", cdn, 0, 0);
    hx_host_out(&r.hosts[cdn], -EACCES, "403");
    assert_int_equal(choose(1, -1, 1, &when), 0);
    assert_int_equal(f->links[0].state, HX_LINK_UNKNOWN);
}

static void wrong_bytes_come_from_elsewhere_next_time(void **state)
{
    (void)state;
    double when;
    int cdn = hx_remotes_host(&r, "https://cdn.example/");
    hx_link_signed(&f->links[0], "https://cdn.example/x?s", cdn, 0, 0);
    assert_int_equal(choose(ALL, cdn, 1, &when), 1);
    /* Nobody else: then from there again. */
    assert_int_equal(choose(1, cdn, 1, &when), 0);
}

static void one_request_resolves_the_others_wait(void **state)
{
    (void)state;
    double when;
    f->links[0].state = HX_LINK_RESOLVING;
    assert_int_equal(choose(1, -1, 1, &when), -EAGAIN);
    assert_int_equal(choose(ALL, -1, 1, &when), -EAGAIN); /* the first choice will be there soon */
    hx_link_direct(&f->links[2], r.endpoint_hosts[2]);
    assert_int_equal(choose(4, -1, 1, &when), 2);
}

static void entity_tags_of_one_host_agree(void **state)
{
    (void)state;
    struct hx_link *l = &f->links[0];
    assert_true(hx_link_same_etag(l, 1, "\"a\""));
    assert_true(hx_link_same_etag(l, 1, "\"a\""));
    assert_true(hx_link_same_etag(l, 1, "")); /* none is allowed */
    assert_false(hx_link_same_etag(l, 1, "\"b\""));
    assert_true(hx_link_same_etag(l, 2, "\"b\"")); /* another host, another family */
}

static void bad_endpoints(void **state)
{
    (void)state;
    char name[] = "x", url[] = "ftp://x/";
    const struct hx_endpoint e = {name, url, HX_ENDPOINT_HUB};
    struct hx_remotes bad;
    struct hx_error err = {0};
    assert_int_equal(hx_remotes_init(&bad, &e, 1, 1, &err), -EINVAL);
    assert_non_null(strstr(err.text, "'x'"));
    assert_int_equal(hx_remotes_init(&bad, &e, 0, 1, &err), -EINVAL);
}

static void what_is_said_about_certificates(void **state)
{
    (void)state;
    char text[256];
    hx_fetch_certificate_text(100, 200, "self signed", text, sizeof(text));
    assert_non_null(strstr(text, "set the clock"));
    hx_fetch_certificate_text(300, 200, "self signed\n\x01", text, sizeof(text));
    assert_null(strstr(text, "clock"));
    assert_null(strchr(text, '\n'));
    hx_fetch_certificate_text(300, 200, "certificate is not yet valid", text, sizeof(text));
    assert_non_null(strstr(text, "clock"));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(addresses_of_both_kinds),
        T(the_token_goes_to_hubs_over_tls_or_here),
        T(one_entry_for_each_file_and_host),
        T(too_many_hosts),
        T(in_order_of_preference),
        T(spread_by_what_they_give),
        T(what_is_to_be_had_elsewhere),
        T(a_failing_host_comes_last_for_a_while),
        T(three_protocol_errors_in_a_row),
        T(out_for_the_run),
        T(a_refused_link_leaves_the_others),
        T(a_server_that_asks_to_wait),
        T(links_are_renewed_in_time),
        T(an_edge_that_is_out_gets_a_new_link),
        T(wrong_bytes_come_from_elsewhere_next_time),
        T(one_request_resolves_the_others_wait),
        T(entity_tags_of_one_host_agree),
        cmocka_unit_test(bad_endpoints),
        cmocka_unit_test(what_is_said_about_certificates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
