#!/data/data/com.termux/files/usr/bin/bash
# A client on an Android phone, in Termux. The first time: bash termux.sh setup
# Later, also from Termux:Boot (~/.termux/boot/): bash termux.sh
set -e
cd "$(dirname "$0")"
if [ "$1" = setup ]; then
    # python-grpcio is for servers that speak gRPC; those that speak HTTPS do without it.
    pkg install -y python python-torch python-numpy python-grpcio termux-api
    # The packages of Termux are seen from within; nothing is compiled on the phone.
    python -m venv --system-site-packages "$HOME/fedarena"
    "$HOME/fedarena/bin/pip" install --no-deps fedarena
fi
# Keeps the processor awake while the client runs; it works only while the phone charges and is on Wi-Fi.
termux-wake-lock
trap termux-wake-unlock EXIT
"$HOME/fedarena/bin/python" -m fedarena.client "${INVITATION:-phone.zip}" --data "${DATA:-mydata.py:load}" \
    --only-charging --only-wifi
