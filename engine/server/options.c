/* Options of hx-engine. */
#include "server/options.h"

#include <hx/engine.h>

#define O(field) offsetof(struct hx_server_options, field)
#define S(section, key, field, standard, help)                                                     \
    {                                                                                              \
        section, key, HX_CONF_STRING, O(field), 0,                                                 \
            sizeof(((struct hx_server_options *)0)->field) - 1, standard, NULL, help               \
    }

const struct hx_conf_option hx_server_option_rows[] = {
    S("engine", "model", model, "/srv/models/current", "model folder"),
    S("engine", "backend", backend, "cpu", "cpu"),
    {"engine", "max_context", HX_CONF_INT, O(max_context), 0, 16777216, "262144", NULL,
     "tokens of one sequence; 0: the model's own limit"},
    {"engine", "max_sequences", HX_CONF_INT, O(max_sequences), 1, 64, "8", NULL,
     "sequences that run at once"},
    {"engine", "kv_tokens", HX_CONF_INT, O(kv_tokens), 0, 1e9, "0", NULL,
     "tokens that all sequences may hold together; 0: as many as a quarter of the memory holds"},
    {"engine", "prefill_chunk", HX_CONF_INT, O(prefill_chunk), 1, 65536, "2048", NULL,
     "prompt tokens of one sequence computed in one step"},
    {"speculative", "drafts", HX_CONF_INT, O(drafts), 0, HX_MAX_DRAFTS, "5", NULL,
     "tokens drafted ahead, at most the model's own block; 0: none"},
    {"speculative", "gate", HX_CONF_REAL, O(gate), 0, 1, "0.10", NULL,
     "drafts are verified while the product of their confidences is at least this; 0: all"},
    S("engram", "paths", engram_paths, "",
      "folders with copies of the Engram shards, one for each drive, with : between; empty: the "
      "model folder"),
    {"engram", "mode", HX_CONF_CHOICE, O(engram_mode), 0, 0, "direct", "direct buffered",
     "read rows from the drive, or through the page cache"},
    S("engram", "cache", engram_cache, "auto",
      "memory for rows that return, such as 2G; 0: none; auto: 4G, at most a tenth of the memory"),
    S("engram", "hot_file", engram_hot, "",
      "file that keeps over a restart which rows were in the cache; empty: none"),
    {"engram", "slow_read", HX_CONF_TIME, O(engram_slow), 100e3, 600e6, "2s", NULL,
     "a read slower than this is an error; after five times as long its drive counts as lost"},
    S("server", "listen", listen, "127.0.0.1:8000", "address:port"),
    {"server", "max_body", HX_CONF_SIZE, O(max_body), 1024, 1 << 30, "64M", NULL,
     "largest request body"},
    {"server", "queue", HX_CONF_INT, O(queue), 0, 4096, "64", NULL, "requests that may wait"},
    {"server", "max_connections", HX_CONF_INT, O(max_connections), 1, 4096, "256", NULL,
     "open connections"},
    {"server", "stop_grace", HX_CONF_TIME, O(stop_grace), 0, 600e6, "30s", NULL,
     "time for running requests after a stop signal"},
    {"server", "keepalive", HX_CONF_TIME, O(keepalive), 50e3, 600e6, "10s", NULL,
     "silence after which a stream gets a comment line"},
    {"server", "idle", HX_CONF_TIME, O(idle), 1e6, 3600e6, "30s", NULL,
     "idle connections are closed after this"},
    {"server", "slow_reader", HX_CONF_TIME, O(slow_reader), 100e3, 3600e6, "60s", NULL,
     "a client that takes nothing for this long counts as gone"},
    S("server", "model_aliases", model_aliases, "",
      "extra model names, separated by spaces; * accepts all"),
    {"server", "reasoning_field", HX_CONF_CHOICE, O(reasoning_field), 0, 0, "reasoning_content",
     "reasoning_content reasoning both", "name of the reasoning field in answers"},
    {"server", "effort_table", HX_CONF_CHOICE, O(effort_table), 0, 0, "release", "release legacy",
     "numbers behind reasoning_effort names"},
    S("server", "key_file", key_file, "", "file of mode 0600 with the bearer key"),
    {"server", "allow_unauthenticated", HX_CONF_BOOL, O(allow_unauthenticated), 0, 0, "no", NULL,
     "allow an address other than loopback without a key"},
    S("server", "allowed_hosts", allowed_hosts, "",
      "further names for the Host header, separated by spaces"),
    S("server", "allowed_origins", allowed_origins, "",
      "web origins that may call, separated by spaces"),
    {"server", "metrics_auth", HX_CONF_BOOL, O(metrics_auth), 0, 0, "no", NULL,
     "/metrics asks for the key too"},
    {"server", "json_keepalive", HX_CONF_BOOL, O(json_keepalive), 0, 0, "yes", NULL,
     "line feeds while a long answer that is not streamed is computed"},
    {"server", "log_prompts", HX_CONF_BOOL, O(log_prompts), 0, 0, "no", NULL,
     "write prompts to the log"},
};

const int hx_server_n_option_rows =
    sizeof(hx_server_option_rows) / sizeof(hx_server_option_rows[0]);
