"""Getting started: actors, meshes, slices, messages, errors."""

from monarch.actor import Actor, ActorError, current_rank, endpoint, this_host


class Tally(Actor):
    """Keeps a number on every rank."""

    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def increase(self, by: int = 1) -> None:
        self.value += by

    @endpoint
    def read(self) -> int:
        return self.value

    @endpoint
    def divide(self, by: int) -> float:
        return self.value / by


class Overseer(Actor):
    """Works with tallies that somebody else has spawned."""

    def __init__(self, tallies: Tally) -> None:
        self.tallies = tallies

    @endpoint
    def settle(self) -> int:
        mine = self.tallies.slice(gpus=current_rank()["gpus"])
        mine.increase.call_one(by=100 * current_rank().rank).get()
        return mine.read.call_one().get()


def main() -> None:
    procs = this_host().spawn_procs(per_host={"gpus": 4})
    tallies = procs.spawn("tallies", Tally, 10)

    tallies.increase.broadcast()
    print(tallies.read.call().get().values())

    tallies.slice(gpus=slice(2, 4)).increase.call(5).get()
    for point, value in tallies.read.call().get().items():
        print(point["gpus"], value)
    print(tallies.slice(gpus=3).read.call_one().get())

    overseers = procs.spawn("overseers", Overseer, tallies)
    print(overseers.settle.call().get().values())

    try:
        tallies.divide.call(0).get()
    except ActorError as error:
        print(type(error.exception).__name__)
    print(sum(answer.get() for answer in tallies.read.stream()))
    procs.stop().get()


if __name__ == "__main__":
    main()
