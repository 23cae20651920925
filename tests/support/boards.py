"""Boards of simulations."""

from infra.figures.board import Board
from infra.simulation.simulator import Simulation, Step


def board_of(simulation: Simulation, cell: str = "c") -> Board:
    """Run a simulation and fold its steps at their exact times."""
    board = Board(cell)

    def fold(step: Step) -> None:
        board.fold_step(step.time_s, step.entry, step.decisions)

    simulation.pass_on(fold)
    return board
