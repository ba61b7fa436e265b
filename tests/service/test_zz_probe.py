import os, signal, time
from pathlib import Path
from tests.postgres import postgres, postgres_url
from tests.service.test_server import *
def test_x(tmp_path, postgres_url):
    path = written(tmp_path, slot_s=3600.0, choose_s=3000.0)
    served = Coordinator(path, postgres_url, workers=2)
    with served.running():
        time.sleep(2)
        ws = served.worker_processes()
        p = served._running()
        print("parent", p.pid, "workers", ws)
        os.kill(p.pid, signal.SIGKILL)
        for i in range(14):
            time.sleep(1)
            print(i, [(pid, gone(pid), Path(f"/proc/{pid}/stat").read_text().rsplit(")",1)[1].split()[:2] if not gone(pid) else None, Path(f"/proc/{pid}/wchan").read_text() if not gone(pid) else None) for pid in ws], flush=True)
            if all(gone(w) for w in ws): break
        for pid in ws:
            if not gone(pid):
                os.system(f"ls -la /proc/{pid}/fd | head -30; cat /proc/{pid}/status | head -8")
        print(served.log.read_text()[-1500:], served.output.read_text()[-1500:])
