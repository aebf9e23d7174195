# Benchmarks that need no GPU. Results go to docs/perf-log.md by hand, with date and command.
TOKENIZER_BENCH := $(O)/tests/bench/bench_tokenizer

$(TOKENIZER_BENCH): $(O)/obj/tests/bench/bench_tokenizer.o $(call hx_libs,text)
	@mkdir -p $(@D)
	@echo "  LD    bench_tokenizer"
	$(Q)$(CC) $(HX_LDFLAGS) $(LDFLAGS) -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group \
	  $(call hx_sysl,text) -lm

# Beside the library that other servers use, in its own Python folder.
bench-tokenizer: $(TOKENIZER_BENCH) $(BUILD)/data/tokenizer.json
	$(Q)$$(scripts/venv.sh $(BUILD)/venv-bench tokenizers==0.23.2) tests/bench/bench_tokenizer.py \
	  --program $(TOKENIZER_BENCH) --tokenizer $(BUILD)/data/tokenizer.json --texts $(BUILD)/bench/tokenizer
.PHONY: bench-tokenizer

# hx-fetch beside curl, aria2c and the hub's Python client, on one server and one disk.
bench-fetch:
	$(Q)tests/bench/fetch_speed.sh $(BUILD)
.PHONY: bench-fetch
