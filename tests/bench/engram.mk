# Engram: cache policies on real text, and the drive beside fio.
ENGRAM_POLICY := $(O)/tests/bench/bench_engram_policy

$(ENGRAM_POLICY): $(O)/obj/tests/bench/bench_engram_policy.o $(call hx_libs,text engram)
	@mkdir -p $(@D)
	@echo "  LD    bench_engram_policy"
	$(Q)$(CC) $(HX_LDFLAGS) $(LDFLAGS) -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group \
	  $(call hx_sysl,text engram) -lm

bench-engram-policy: $(ENGRAM_POLICY) $(BUILD)/data/tokenizer.json $(BUILD)/data/engram_map.i32
	$(Q)tests/bench/engram_policy.sh $(ENGRAM_POLICY) $(BUILD)/data/tokenizer.json \
	  $(BUILD)/data/engram_map.i32 $(BUILD)/bench/engram

# The figures of issue G; FIO_ARGS as tests/bench/engram_fio.sh explains.
bench-engram-fio: $(O)/bin/hx-bench
	$(Q)tests/bench/engram_fio.sh $(FIO_ARGS) $(O)/bin/hx-bench

# Stalls of 2,000 decode steps, twice, and of prompt chunks: 19 minutes. STEPS_ARGS as tests/bench/engram_steps.sh explains.
bench-engram-steps: $(O)/bin/hx-bench
	$(Q)tests/bench/engram_steps.sh $(STEPS_ARGS) $(O)/bin/hx-bench
.PHONY: bench-engram-policy bench-engram-fio bench-engram-steps
