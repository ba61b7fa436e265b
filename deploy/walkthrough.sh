#!/bin/bash
# Walks through docs/deploy.md in a clean root of Debian 12, without systemd: the coordinator is
# started with the command of checkins.service. Run it as root inside of that root:
#
#   bash walkthrough.sh WHEEL CONSTRAINTS
#
# Both arguments are files. The folder of this script has the files of deploy/.
set -euo pipefail
wheel=$1 constraints=$2 here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
step() { printf '%4d s  %s\n' "$SECONDS" "$*"; }

step "1. install"
useradd --system --home-dir /var/lib/checkins checkins
python3 -m venv /opt/checkins
/opt/checkins/bin/pip install --quiet --disable-pip-version-check --constraint "$constraints" \
    "$wheel[service,client]"
ln -sf /opt/checkins/bin/checkins /usr/local/bin/checkins

step "2. secrets and certificate"
install -d -m 0750 -g checkins /etc/checkins
(umask 077 && python3 -c 'import secrets; print(secrets.token_urlsafe(32))' \
    > /etc/checkins/operator-token)
checkins signing-key --out /etc/checkins/signing.key
public_key=$(python3 -c 'import json; print(json.load(open("/etc/checkins/signing.key"))["public"])')
make_certificate() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 \
        -subj /CN=campaigns.example -addext subjectAltName=DNS:campaigns.example \
        -keyout /etc/checkins/tls.key -out /etc/checkins/tls.pem 2> /dev/null
    chgrp checkins /etc/checkins/tls.key && chmod 0640 /etc/checkins/tls.key
}
make_certificate
cp /etc/checkins/tls.pem $work/ca.pem
echo "127.0.0.1 campaigns.example" >> /etc/hosts

step "3. start with the command of checkins.service"
install -d -m 0700 -o checkins -g checkins /var/lib/checkins /var/lib/checkins-progress
install -d -m 0700 -o checkins -g checkins /var/backups/checkins
install -d -m 0700 -o checkins -g checkins /run/credentials-of-checkins
for name in operator-token signing-key; do
    source=/etc/checkins/${name/signing-key/signing.key}
    install -m 0400 -o checkins "$source" "/run/credentials-of-checkins/$name"
done
command=$(sed -n '/^ExecStart=/,/[^\\]$/p' "$here/checkins.service" | sed 's/^ExecStart=//; s/\\$//')
start() {
    (cd /var/lib/checkins && CHECKINS_OPTIONS= CREDENTIALS_DIRECTORY=/run/credentials-of-checkins \
        exec setpriv --reuid checkins --regid checkins --clear-groups --no-new-privs \
        --inh-caps=-all,+net_bind_service --ambient-caps=+net_bind_service \
        --bounding-set=-all,+net_bind_service \
        bash -c "exec $(echo $command)" > /var/log/checkins.out 2> /var/log/checkins.err) &
    coordinator=$!
    for _ in $(seq 600); do
        curl --silent --fail --cacert $work/ca.pem https://campaigns.example/readyz && break
        kill -0 $coordinator || { cat /var/log/checkins.err; exit 1; }
        sleep 0.2
    done
    echo
}
start
url=https://campaigns.example with=(--ca $work/ca.pem)
token=(--operator-token-file /etc/checkins/operator-token)

step "4. open a campaign"
checkins init --task synthetic --out $work/campaign.toml > /dev/null
sed -i -e 's/^epsilon = 0.5 /epsilon = 8.0 /' -e 's/^slots = 1000 /slots = 30 /' \
    -e "s/^start = [^ ]*/start = $(date -u -d '+20 seconds' +%Y-%m-%dT%H:%M:%SZ)/" \
    $work/campaign.toml
curl --silent --fail --cacert $work/ca.pem -H 'Content-Type: application/toml' \
    -H "Authorization: Bearer $(cat /etc/checkins/operator-token)" \
    --data-binary @$work/campaign.toml $url/campaigns > /dev/null

step "5. keys, operators, metrics"
python3 -c 'import secrets; [print(secrets.token_urlsafe()) for _ in range(3)]' > $work/keys
checkins allow-list $url "${with[@]}" --add $work/keys "${token[@]}"
checkins operators $url "${with[@]}" --add prometheus --role metrics --out $work/metrics-token \
    "${token[@]}"
curl --silent --fail --cacert $work/ca.pem $url/metrics \
    -H "Authorization: Bearer $(cat $work/metrics-token)" | grep '^checkins_store_free_bytes'

step "6. three devices join, and one without a key is refused"
join() {
    checkins join $url "${with[@]}" --row "$1" --state "$work/device-$1" --most-epsilon 8 "${@:2}"
}
join 9 --json && exit 1 || echo "refused, as it should be"
for device in 1 2 3; do
    sed -n "${device}p" $work/keys > "$work/key-$device"
    join $device --key-file "$work/key-$device" --json > "$work/device-$device.json" &
    devices[device]=$!
done

step "7. renew the certificate and restart while the devices wait"
make_certificate
cat /etc/checkins/tls.pem >> $work/ca.pem
kill -HUP $coordinator
for _ in $(seq 100); do
    grep -q certificate-loaded /var/log/checkins.err && break
    sleep 0.1
done
grep certificate-loaded /var/log/checkins.err
kill -TERM $coordinator && wait $coordinator
start
for device in 1 2 3; do
    wait "${devices[device]}"
    grep -o '"outcome": "[a-z]*"' "$work/device-$device.json" | head -1
done

step "8. back up, and verify with the pinned key"
setpriv --reuid checkins --regid checkins --clear-groups checkins backup \
    --store sqlite:////var/lib/checkins/store.db --out /var/backups/checkins/store.db
checkins verify $url "${with[@]}" --key "$public_key"
checkins operators $url "${with[@]}" --log "${token[@]}"
kill -TERM $coordinator && wait $coordinator
step "done"
