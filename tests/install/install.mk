# hx-install and hx-update on a machine in a folder; the units of etc/systemd.
test-install:
	$(Q)BUILD=$(BUILD) tests/install/run.sh
test-units:
	$(Q)tests/units/run.sh
.PHONY: test-install test-units
