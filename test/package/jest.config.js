import base from '../../jest.config.js';

/** `npm run test:package`: the packed package in small projects, with what they install from the registry. */
export default {
  ...base,
  rootDir: '../..',
  roots: ['<rootDir>/test/package'],
  testPathIgnorePatterns: ['/node_modules/'],
  testTimeout: 180_000,
  maxWorkers: 1,
};
