"""A workload as a process of its own: reads commands by line, prints what came of them.

Run as ``python worker.py <socket>``; blocking, so that SIGSTOP and SIGKILL hit something real.
"""

import array
import mmap
import os
import signal
import socket
import sys

from evac.segment import PAGE, Header, SlotState, aligned
from evac.wire import (
    Acquire,
    Done,
    Granted,
    Hello,
    Leave,
    Message,
    Register,
    Registered,
    Release,
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
        self.last = 0, 0
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

    def write(self, number: int, step: int, length: int, launch: int, items: int = 0) -> None:
        slot, tail = self.slots[number], PAGE + aligned(length)
        slot[PAGE : PAGE + length] = bytes([step % 251]) * length
        some = ",".join(f'{{"name":"w{one}","offset":0,"nbytes":1}}' for one in range(items))
        descriptor = f'{{"items":[{some}]}}'.encode()
        slot[tail : tail + len(descriptor)] = descriptor
        header = Header(SlotState.COMPLETE, launch, step, length, tail, len(descriptor)).pack()
        slot[: len(header)] = header

    def granted(self) -> int:
        granted = self.ask(Acquire())
        assert isinstance(granted, Granted), granted
        return granted.slot

    def say_and_die(self, *packets: bytes) -> None:
        """Without a look at what the daemon has said meanwhile."""
        for packet in packets:
            self.sock.send(packet)
        os.kill(os.getpid(), signal.SIGKILL)

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
                number = self.granted()
                self.write(number, step, length, launch)
                return self.ask(Staged(number, step))
            case "scribble":
                number = self.granted()
                self.slots[number][PAGE : 2 * PAGE] = b"?" * PAGE
                return Granted(number)
            case "write":
                # All but the word that says so.
                step, length, launch, items = map(int, words)
                self.last = self.granted(), step
                self.write(self.last[0], step, length, launch, items)
                return "written"
            case "die-staging":
                self.say_and_die(encode(Staged(*self.last)))
            case "end-staging":
                self.sock.send(encode(Staged(*self.last)))
                self.sock.close()
                os._exit(0)
            case "die-staging-twice":
                number, step = self.last
                self.write(number + 1, step + 1, 5000, 0)
                self.say_and_die(
                    encode(Staged(number, step)),
                    encode(Acquire()),
                    encode(Staged(number + 1, step + 1)),
                )
            case "die-babbling":
                self.say_and_die(b"babble", encode(Staged(*self.last)))
            case "die-leaving":
                self.say_and_die(encode(Staged(*self.last)), encode(Leave()))
            case "die-done":
                self.say_and_die(encode(Done(int(words[0]), ok=True, nbytes=7)))
            case "die-haunting":
                if os.fork() == 0:
                    # Holds the dead one's socket, and is never silent on it.
                    while True:
                        self.sock.send(encode(Release(99)))
                self.say_and_die(encode(Staged(*self.last)))
            case "child":
                # A whole life in a process of its own, at the price of a fork.
                socket_path, *staged = words
                if os.fork() == 0:
                    heir = Worker(socket_path)
                    assert isinstance(heir.do("register", "train", "0", "1", "staged"), Registered)
                    size = (1 << 20) + 64 * int(staged[3])
                    assert isinstance(heir.do("reserve", str(size), staged[2]), Slot)
                    heir.do("write", *staged)
                    heir.do("die-staging")
                return os.waitstatus_to_exitcode(os.wait()[1])
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
