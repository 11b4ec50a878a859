"""A workload as a process of its own: reads commands by line, prints what came of them.

Run as ``python worker.py <socket>``; blocking, so that SIGSTOP and SIGKILL hit something real.
"""

import array
import mmap
import os
import signal
import socket
import sys

from evac.segment import PAGE, Header, SlotState
from evac.wire import (
    Acquire,
    Granted,
    Hello,
    Message,
    Register,
    Reserve,
    Slot,
    Staged,
    decode,
    encode,
)


class Worker:
    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.connect(path)
        self.slots: dict[int, mmap.mmap] = {}
        self.ids = 0

    def receive(self, re: int | None) -> Message:
        while True:
            raw, rights, _, _ = self.sock.recvmsg(1 << 17, socket.CMSG_SPACE(4))
            packet = decode(raw)
            message = packet.message
            if isinstance(message, Slot):
                (fd,) = array.array("i", rights[0][2])
                self.slots[message.slot] = mmap.mmap(fd, message.nbytes)
                if not message.last:
                    continue
            if packet.re == re:
                return message

    def ask(self, message: Message) -> Message:
        self.ids += 1
        self.sock.send(encode(message, id=self.ids))
        return self.receive(self.ids)

    def do(self, command: str, *words: str) -> object:
        match command:
            case "register":
                self.ask(Hello(version=1))
                job, rank, world, mode = words
                need = 1.0 if mode == "callback" else 0.0
                message = Register(job, int(rank), int(world), mode=mode, need_seconds=need)
                return self.ask(message)
            case "reserve":
                nbytes, incarnation = words
                return self.ask(Reserve(int(nbytes), "__0_0.distcp", int(incarnation)))
            case "acquire":
                return self.ask(Acquire())
            case "stage":
                step, length, launch = map(int, words)
                granted = self.ask(Acquire())
                assert isinstance(granted, Granted), granted
                slot = self.slots[granted.slot]
                slot[PAGE : PAGE + length] = bytes([step % 251]) * length
                header = Header(SlotState.COMPLETE, launch, step, length).pack()
                slot[: len(header)] = header
                return self.ask(Staged(granted.slot, step))
            case "scribble":
                granted = self.ask(Acquire())
                assert isinstance(granted, Granted), granted
                self.slots[granted.slot][PAGE : 2 * PAGE] = b"?" * PAGE
                return granted
            case "fork":
                child = os.fork()
                if child == 0:
                    # Keeps everything open, as a data loader's worker does.
                    signal.pause()
                return child
            case "die":
                os.kill(os.getpid(), 9)
            case "close":
                self.sock.close()
                return "closed"
        return f"unknown command {command}"


def main() -> None:
    worker = Worker(sys.argv[1])
    say = sys.stdout
    say.write(f"{os.getpid()}\n")
    say.flush()
    for text in sys.stdin:
        say.write(f"{worker.do(*text.split())}\n")
        say.flush()


if __name__ == "__main__":
    main()
