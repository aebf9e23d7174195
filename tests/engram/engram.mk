# Tests of the Engram streamer against drives and files that fail (test_faults.c), and long ones.
#
#   make test-engram-faults   and a sample of the long ones: a minute
#   make test-engram-long     ten million rows of a full-size file, a million waves: half an hour
ENGRAM_TESTS := $(O)/tests/engram-faults $(O)/tests/engram-long

$(ENGRAM_TESTS): $(O)/tests/engram-%: $(O)/obj/tests/engram/test_%.o $(call hx_libs,engram)
	@mkdir -p $(@D)
	@echo "  LD    engram-$*"
	$(Q)$(CC) $(HX_LDFLAGS) $(LDFLAGS) -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group \
	  $(call hx_sysl,engram) -lcmocka -lm

test-engram-faults: $(O)/tests/engram-faults $(O)/tests/engram-long $(O)/tests/faultfs
	$(Q)tests/run-unit.sh $(O)/tests/engram-faults $(O)/tests/engram-long

test-engram-long: $(O)/tests/engram-long
	$(Q)HX_LONG=1 tests/run-unit.sh $(O)/tests/engram-long
.PHONY: test-engram-faults test-engram-long
