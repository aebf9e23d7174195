# hx-fetch against a hub on the loopback address; long: 200 kills at random times, a failing disk at every step.
test-hub:
	$(Q)BUILD=$(BUILD) tests/fetch/run.sh
test-fetch-long:
	$(Q)BUILD=$(BUILD) tests/fetch/run.sh $(BUILD) -m long
.PHONY: test-hub test-fetch-long
